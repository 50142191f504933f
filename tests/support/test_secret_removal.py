# SPDX-License-Identifier: Apache-2.0
"""Secrets go by what they are and by how they look; what helps stays."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from pool_certificates import PoolCa

from sluice.config.server import ServerConfig
from sluice.guest_runtime.secret_removal import (
    SecretRemoval,
    secret_name,
    settings_without_secrets,
)
from sluice.support.bundle import keys_of

SECRET = "Zq7-hunter2_X9"


@pytest.mark.parametrize(
    "text",
    [
        "token=" + SECRET,
        "password: " + SECRET,
        f'{{"secret": "{SECRET}", "a": 1}}',
        f"{{'api_key': '{SECRET}'}}",
        f"OS_PASSWORD={SECRET}",
        f'db_passwd = "{SECRET} with blanks"',
        f"GET /v1/pool HTTP/1.1 Authorization: Bearer {SECRET}",
        f"X-Auth-Token: {SECRET}",
        f"Cookie: sluice_console={SECRET}; other=1",
        f"curl -H 'Authorization: Basic {SECRET}=='",
        f"etcd at https://root:{SECRET}@10.0.0.1:2379 does not answer",
        f"https://root:{SECRET}%40x@etcd",
        f"SLUICE_JOB={SECRET}",
        f"?next=/&token={SECRET}&x=1",
        f"GET /console/signed-in?code={SECRET}&x=1",
        f"https://storage.example/x?sig={SECRET}",
        f"https://user:pa/ss{SECRET}@host/x",
        f"https://user:p@{SECRET}@host/x",
        f"http://u:{SECRET}@[::1]:80/",
        f"https://hooks.example.com/services/T0AB/{SECRET}",
        f"https://chat.example/api/webhooks/{SECRET}",
        f"webhook = https://chat.example/{SECRET}",
        f"MYSQL_PWD={SECRET}",
        f"SSHPASS={SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"registry_auth={SECRET}",
        f"program --password {SECRET} --x",
        f"program --api-token {SECRET}",
        f"curl -u user:{SECRET} host",
        f"password => {SECRET}",
        f"<password>{SECRET}</password>",
        f'bind password "{SECRET} with blanks"',
        f"the password is {SECRET}",
        "a key astray MHcCAQEEIIhunter2kqW8n3Zx7VtQ5rYp1LmJc0Df4Gb6Hs9KoAoGCCqGSM49 in a line",
        f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.{SECRET}",
        f"sluice_{SECRET}{SECRET}",
        f"sluice_enrol_{SECRET}{SECRET}",
        f"root:$6$salt$abcdefghij{SECRET.replace('-', '.').replace('_', '/')}:19000:0:",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n",
        f"-----BEGIN EC PRIVATE KEY-----\n{SECRET} and no end",
    ],
)
def test_what_looks_like_a_secret_goes(text: str) -> None:
    removal = SecretRemoval()
    cleaned = removal.clean(f"before {text}")
    assert "hunter2" not in cleaned
    assert "(left out)" in cleaned
    assert cleaned.startswith("before")
    assert removal.removed >= 1


@pytest.mark.parametrize(
    "text",
    [
        'sluice_pool_memory_granted_bytes{gpu="GPU-1a"} 12.0',
        "sluice_vgpu_share_ratio{window=\"1s\"} 0.5",
        "[controller] token_file = /etc/sluice/node.token",
        "session=4be10f2233445566 grant=c07a112233445566 started: train.py",
        "node.lost gpu-1: silent for 30 s",
        "token_id: 1a2b3c4d",
        "http://127.0.0.1:9123/v1/pool",
        "GET /v1/grants?limit=500&state=active",
        "the token is not one of this pool's; ask its operator for one",
        "sluice --token-file /etc/sluice/accounts/admin.token status",
        "password file /etc/sluice/vcenter2.credentials is there",
        "-----BEGIN CERTIFICATE-----",
        "/opt/sluice/lib/libcuda.so.1",
        "key_file = /etc/sluice/node.key",
        "monkey = banana",
        "GPU-8f6d3e2a-1b2c-4d5e-8f90-a1b2c3d4e5f6 is well",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "/home/Alice/Data2/2026/Projects/VisionTraining/Run17/checkpoints/Epoch3/weights",
    ],
)  # fmt: skip
def test_what_helps_stays(text: str) -> None:
    removal = SecretRemoval()
    assert removal.clean(text) == text
    assert removal.removed == 0


def test_what_is_known_goes_wherever_it_stands(tmp_path: Path) -> None:
    removal = SecretRemoval()
    removal.know(['pass "word" /+', "abcd"])
    said = 'x pass "word" /+ y pass%20%22word%22%20%2F%2B {"a": "pass \\"word\\" /+"}'
    assert "word" not in removal.clean(said)
    assert removal.clean("abcd") == "abcd", "too short: it would take words out of every line"
    encoded = SecretRemoval()
    encoded.know([SECRET])
    data = SECRET.encode()
    for form in (data.hex(), base64.b64encode(data).decode(), base64.b16encode(data).decode()):
        assert form not in encoded.clean(f"x {form} y")
    path = tmp_path / "vcenter"
    path.write_text(f"user = bob@vsphere\npassword = {SECRET}\n")
    assert removal.know_file(path)
    assert SECRET not in removal.clean(f"login as bob failed with {SECRET}!")
    assert not removal.know_file(tmp_path / "none")


def test_each_line_of_a_private_key_is_known(tmp_path: Path) -> None:
    key = PoolCa(tmp_path).issue("node").key
    removal = SecretRemoval()
    removal.know_file(key)
    lines = [line for line in key.read_text().splitlines() if not line.startswith("-----")]
    assert lines
    for line in lines:
        assert line not in removal.clean(f"a log that says {line} in the middle")
    unknown = SecretRemoval().clean("\n".join(lines))
    assert not [line for line in lines if len(line) > 40 and line in unknown]


@pytest.mark.parametrize("name", ["password", "SLUICE_TOKEN", "api-key", "key", "os_password"])
def test_names_of_secrets_are_known(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize("name", ["token_file", "key_seconds", "rest_port", "key_file", "channel"])
def test_and_harmless_names_too(name: str) -> None:
    assert not secret_name(name)


def test_no_setting_of_the_server_is_lost_and_no_secret_stays() -> None:
    known = keys_of(ServerConfig)
    assert "controller.token_file" in known
    assert "server-nccl.comm_id" in known
    text = (
        f"; the password is {SECRET}\n[server]\nlisten_port = 9960 # {SECRET}\n"
        f"passwrod = {SECRET}\n{SECRET}\n[controller]\ntoken_file = /etc/sluice/t\n"
        f'token = "{SECRET}"\n'
    )
    shown = settings_without_secrets(text, known)
    assert SECRET not in shown
    assert "listen_port = 9960" in shown
    assert "token_file = /etc/sluice/t" in shown
    assert "passwrod = (left out)" in shown


def test_hostile_text_is_cleaned_within_bounds() -> None:
    """What would make a pattern try all its ways."""
    removal = SecretRemoval()
    for text in ("a" * 200_000, "-" * 200_000, "key" * 60_000, "a.b-" * 50_000, "://" * 60_000):
        assert len(removal.clean(text)) <= 2 * len(text)
