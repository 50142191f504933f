# SPDX-License-Identifier: Apache-2.0
"""`sluice init` and `sluice invite`: pools that they make work, run again they change nothing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cuda_holder
import pytest
from control_plane import native_worker, wait_for
from init_hosts import InitHost, sluice

from sluice.cli.setup.answers import Answers, ask_for, settled
from sluice.cli.setup.ini_editing import with_keys
from sluice.config.native_files import find_native

FIRST = ("--node-name", "first", "--driver", "softgpu")


@pytest.fixture
def host(short_path: Path) -> Iterator[Callable[[str], InitHost]]:
    """host(name) → a host of that name on this machine."""
    made: list[InitHost] = []
    short_path.chmod(0o755)  # workers have an account of their own

    def make(name: str) -> InitHost:
        folder = short_path / name
        folder.mkdir()
        folder.chmod(0o755)
        made.append(InitHost(folder))
        return made[-1]

    yield make
    for each in reversed(made):
        each.close()


MakeHost = Callable[[str], InitHost]


def run_program(host: InitHost, **variables: str) -> int:
    """The CUresult that a CUDA program on this host ends with."""
    done = subprocess.run(
        [sys.executable, cuda_holder.__file__],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")},
            "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
            "SLUICE_SERVER_SOCKET": str(host.socket),
            "SLUICE_GMEM": "64",
            **variables,
        },
        input="go\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.startswith("ready\n"), done.stdout + done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.skipif(native_worker() is None, reason="the native part is not built")
def test_a_pool_of_two_hosts_with_tls_runs_programs(host: MakeHost, tmp_path: Path) -> None:
    first, second = host("a"), host("b")
    said = first.must_init(*FIRST, "--tls", "--project", "alpha")
    assert "sluice-controller --config" in said
    first.start("controller")
    first.start("server")
    wait_for(lambda: "first" in first.ask("node", "list"))
    wait_for(lambda: "1 of 1 nodes up" in first.ask("status"))
    assert "admin token" not in first.said("controller")  # it took those that were made
    assert run_program(first, SLUICE_CHANNEL="shm") == 0
    whoami = json.loads(first.ask("token", "whoami", "-o", "json", account="alpha"))
    assert (whoami["roles"], whoami["project"]) == (["tenant"], "alpha"), whoami

    # another host: a file that is carried over
    invitation = tmp_path / "second.join"
    invited = sluice(
        *("invite", "second", "--address", "127.0.0.1", "--config-dir", first.etc),
        *("--into", invitation),
    )
    assert invited.returncode == 0, invited.stderr
    assert stat.S_IMODE(invitation.stat().st_mode) == 0o600
    second.must_init("--join", invitation, "--driver", "softgpu")
    second_grpc = f"[controller]\ngrpc_addr = 127.0.0.1:{first.grpc_port}\n"
    conf = second.etc / "server.conf"  # the test's controller has no ports beside one another
    conf.write_text(conf.read_text().replace("[controller]\n", second_grpc))
    second.start("server")
    wait_for(lambda: "2 of 2 nodes up" in first.ask("status"))
    assert run_program(second, SLUICE_CHANNEL="shm") == 0
    token = (first.etc / "accounts/alpha.token").read_text().strip()
    by_tcp = {
        "SLUICE_CHANNEL": "tcp",
        "SLUICE_CONTROLLER": f"https://127.0.0.1:{first.rest_port}",
        "SLUICE_CA": str(first.etc / "ca/ca.crt"),
    }
    assert run_program(first, **by_tcp, SLUICE_TOKEN=token) == 0

    # the file is good once, and the host that used it may say it again
    before = second.files()
    assert "nothing was changed" in second.must_init("--join", invitation)
    assert "nothing was changed" in second.must_init()
    assert second.files() == before
    third = host("c")
    refused = third.init("--join", invitation, "--driver", "softgpu")
    assert refused.returncode == 5, refused.stderr
    assert not (third.etc / "node.token").exists()


def test_a_second_run_changes_nothing_and_says_so(host: MakeHost) -> None:
    alone = host("a")
    alone.must_init(*FIRST, "--tls", "--project", "alpha")
    before = alone.files()
    for words in ((), (*FIRST, "--tls", "--project", "alpha"), ("--role", "both")):
        assert "nothing was changed" in alone.must_init(*words)
        assert alone.files() == before


def test_what_differs_is_shown_and_not_changed_unasked(host: MakeHost) -> None:
    alone = host("a")
    alone.must_init(*FIRST)
    before = alone.files()
    refused = alone.init("--node-name", "second")
    assert refused.returncode == 1
    assert "nothing was changed; --yes changes it" in refused.stderr
    assert "-node_name = first" in refused.stdout
    assert "+node_name = second" in refused.stdout
    assert alone.files() == before
    alone.must_init("--node-name", "second", "--yes")
    assert b"node_name = second" in alone.files()["server.conf"]
    assert b"node_name = second" in alone.files()["init.conf"]


def test_what_an_operator_wrote_stays(host: MakeHost) -> None:
    alone = host("a")
    alone.must_init(*FIRST)
    text = alone.files()["server.conf"].decode()
    for line in alone.server_settings.splitlines():
        assert line in text.splitlines()
    # and a value of his that would be another one is asked about
    conf = alone.etc / "server.conf"
    conf.write_text(text.replace("bind_addr = 127.0.0.1", "bind_addr = 127.0.0.9 ; mine"))
    refused = alone.init()
    assert refused.returncode == 1
    assert "-bind_addr = 127.0.0.9 ; mine" in refused.stdout


def test_with_tls_later_every_file_follows(host: MakeHost) -> None:
    alone = host("a")
    alone.must_init(*FIRST, "--no-tls")
    assert not (alone.etc / "ca").exists()
    assert alone.init("--tls").returncode == 1
    alone.must_init("--tls", "--yes")
    assert {"ca/ca.key", "tls/node/first.crt", "tls/controller/first.key"} <= alone.files().keys()
    certificate = alone.files()["tls/node/first.crt"]
    # a certificate that does not fit any more is issued anew, and the CA stays
    authority = alone.files()["ca/ca.crt"]
    (alone.etc / "tls/node/first.crt").write_text("no certificate")
    assert "issued anew" in alone.init().stdout
    alone.must_init("--yes")
    after = alone.files()
    assert after["ca/ca.crt"] == authority
    assert after["tls/node/first.crt"] not in (certificate, b"no certificate")
    alone.must_init("--no-tls", "--yes")
    assert b"cert_file" not in alone.files()["server.conf"]


def test_secrets_are_their_owners(host: MakeHost) -> None:
    alone = host("a")
    said = alone.must_init(*FIRST, "--tls", "--project", "alpha")
    for name, content in alone.files().items():
        if name.endswith((".token", ".key")):
            assert stat.S_IMODE((alone.etc / name).stat().st_mode) in (0o600, 0o640), name
            assert content.decode().strip() not in said
    assert stat.S_IMODE((alone.etc / "accounts").stat().st_mode) == 0o700
    hashes = alone.files()["first-tokens.json"].decode()
    assert len(json.loads(hashes)["tokens"]) == 3
    assert "sluice_" not in hashes


def test_an_account_of_later_is_made_by_the_controller(host: MakeHost) -> None:
    alone = host("a")
    alone.must_init(*FIRST)
    alone.start("controller")
    alone.ask("status")
    # it is asked as it runs, and not as it will after this
    alone.must_init("--project", "beta", "--tls", "--yes")
    alone.must_init("--no-tls", "--yes")
    whoami = json.loads(alone.ask("token", "whoami", "-o", "json", account="beta"))
    assert whoami["project"] == "beta"
    # without its controller it says what to do, and makes no token that opens nothing
    alone.close()
    alone.processes.clear()
    refused = alone.init("--project", "beta", "--project", "gamma", "--yes")
    assert refused.returncode == 4, refused.stderr
    assert "start sluice-controller" in refused.stderr
    assert not (alone.etc / "accounts/gamma.token").exists()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--address", "10.0.0"), ["--address 10.0.0", "IP address"]),
        (("--address", "192.0.2.77"), ["--address 192.0.2.77", "no address of this host"]),
        (("--node-name", "a b"), ["--node-name a b", "letters, digits"]),
        (("--role", "server"), ["--role server", "--join FILE"]),
        (("--controller", "x:1"), ["--controller is for --role server"]),
        (("--project", "../x"), ["--project", "../x"]),
        (("--project", "admin"), ["admin"]),
        (("--project", "p", "--project", "P"), ["a project twice"]),
        (("--join", "/nowhere"), ["--join /nowhere", "cannot be read"]),
        (("--ca-file", "/etc/hostname"), ["--ca-file", "--node-token-file"]),
    ],
)
def test_errors_name_the_option_and_the_fix(
    host: MakeHost, words: tuple[str, ...], names: list[str]
) -> None:
    alone = host("a")
    before = alone.files()
    refused = alone.init(*words)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    for name in names:
        assert name in refused.stderr
    assert alone.files() == before


def test_a_hostile_join_file_is_refused_whole(host: MakeHost, tmp_path: Path) -> None:
    maker, joiner = host("a"), host("b")
    maker.must_init(*FIRST, "--tls")
    pem = {name: maker.files()[f"tls/node/first.{name}"].decode() for name in ("crt", "key")}
    good = {
        "form": "sluice-join-1",
        "controllers": ["127.0.0.1:1"],
        "node": "first",
        "address": "127.0.0.1",
        "secret": "sluice_" + "x" * 43,
        "ca": maker.files()["ca/ca.crt"].decode(),
        "certificate": pem["crt"],
        "key": pem["key"],
    }
    before, file = joiner.files(), tmp_path / "x.join"
    for key, value, says in (
        ("node", "../../x", "node"),
        ("node", "other", "certificate is ['first']'s"),
        ("secret", "x", "secret"),
        ("secret", "sluice_\n[x]" + "y" * 20, "secret"),
        ("controllers", ["a"], "host:port"),
        ("controllers", ["a:1"] * 17, "controllers"),
        ("ca", "no PEM", "ca is no PEM"),
        ("key", maker.files()["tls/controller/first.key"].decode(), "key is not"),
        ("ca", "", "go together"),
        ("more", 1, "more"),
        ("form", "sluice-join-9", "form"),
    ):
        file.write_text(json.dumps({**good, key: value}))
        refused = joiner.init("--join", file)
        assert refused.returncode == 2, (key, value, refused.stdout + refused.stderr)
        assert says in refused.stderr, refused.stderr
        assert f"--join {file}" in refused.stderr
        assert joiner.files() == before
    file.write_bytes(b"\xff" * 2_000_000)
    assert "larger than" in joiner.init("--join", file).stderr
    file.write_text(json.dumps(good))
    joiner.must_init("--join", file)
    assert joiner.files()["node.token"].decode().strip() == good["secret"]


def test_questions_go_on_until_the_answer_fits() -> None:
    told = iter(["neither", "both", "a b", "node-1", "10.0.0", "127.0.0.1", "no", "softgpu", "p,q"])
    asked: list[str] = []

    def ask(question: str, default: str) -> str:
        asked.append(question)
        return next(told)

    answers = settled(ask_for({}, {}, ask), {})
    assert answers == Answers(
        role="both",  # type: ignore[arg-type]
        node_name="node-1",
        tls=False,
        driver="softgpu",
        projects=["p", "q"],
    )
    assert len(asked) == 9
    assert next(told, None) is None


@pytest.mark.parametrize(
    ("text", "wanted", "result"),
    [
        ("", {("a", "k"): "v"}, "[a]\nk = v\n"),
        ("# c\n", {("a", "k"): "v"}, "# c\n\n[a]\nk = v\n"),
        ("[a]\nk = v ; c\n", {("a", "k"): "v"}, "[a]\nk = v ; c\n"),
        ("[a]\n  k = v ; c\n", {("a", "k"): "w"}, "[a]\n  k = w\n"),
        ("[a]\nj = 1\n\n[b]\n", {("a", "k"): "v"}, "[a]\nj = 1\nk = v\n\n[b]\n"),
        ("[a]\nj = 1\nk = 2\n", {("a", "k"): None}, "[a]\nj = 1\n"),
        ("[a]\nj = 1", {("a", "k"): None}, "[a]\nj = 1\n"),
        ("[a]\n", {("a", "k"): 'x;"y'}, '[a]\nk = "x;""y"\n'),
        ("[b]\nk = 1\n", {("a", "k"): "2"}, "[b]\nk = 1\n\n[a]\nk = 2\n"),
    ],
)
def test_keys_are_set_and_the_rest_stays(
    text: str, wanted: dict[tuple[str, str], str | None], result: str
) -> None:
    assert with_keys(text, wanted) == result
