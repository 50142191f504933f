# SPDX-License-Identifier: Apache-2.0
"""The virt driver against two releases of Nova: what it overrides is there and means the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.rigs.openstack.rig import OpenStackRig

pytestmark = pytest.mark.openstack
UUID = "11111111-2222-3333-4444-555555555555"
CHECKS = Path(__file__).resolve().parent / "driver_checks.py"


@pytest.fixture(scope="module", params=["installed", "nova-older"])
def said(
    request: pytest.FixtureRequest,
    driver_installed: OpenStackRig,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    rig = driver_installed
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTHONPATH", None)
    if request.param != "installed":
        environment["PYTHONPATH"] = str(rig.root / request.param)
    done = subprocess.run(
        [str(rig.venv / "bin/python"), str(CHECKS), str(tmp_path_factory.mktemp("s"))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (request.param in found["file"]) == (request.param != "installed")
    return found


def test_what_is_overridden_is_there(said: dict[str, Any]) -> None:
    assert said["leading"] == {
        "_get_guest_config": ["instance", "network_info"],
        "check_can_live_migrate_source": ["context", "instance"],
        "update_provider_tree": ["provider_tree", "nodename"],
        "suspend": ["context", "instance"],
        "_create_guest": ["context", "xml", "instance"],
    }
    assert said["callback"] is None


def test_the_definition_gets_metadata_and_no_device(said: dict[str, Any]) -> None:
    for xml in (said["xml"], said["by_name"]):
        assert "<shmem" not in xml
        assert "<sluice:vgpu" in xml
        assert xml.index("<metadata>") < xml.index("<sluice:vgpu") < xml.index("</metadata>")
    assert "sluice" not in said["plain"]
    assert [each["prepare"]["memory_mib"] for each in said["asked"]] == [1024, 1024]


def test_the_server_puts_the_channel_in_between_define_and_start(said: dict[str, Any]) -> None:
    ready = {"ready": {"uuid": UUID}}
    assert said["created"]["ours"] == ["define", ready, "config drive", "start"]
    assert said["created"]["plain"] == ["define", "config drive", "start"]
    assert said["created"]["off"] == ["define", ready]


def test_without_its_channel_an_instance_is_not_started(said: dict[str, Any]) -> None:
    [*done, refusal] = said["created"]["refused"]
    assert done == ["define", {"ready": {"uuid": UUID}}]
    assert refusal.startswith("InstanceDeployFailure")
    assert "no free slot" in refusal
    [defined, away] = said["created"]["absent"]
    assert defined == "define"
    assert "start it on this host, or set [sluice] server_socket" in away


def test_a_server_of_0_1_0_gives_the_device_and_is_asked_no_more(said: dict[str, Any]) -> None:
    assert f'<shmem name="sluice-{UUID}">' in said["by_older"]
    # nor is one whose definition is an instance's former one, as when it is resumed
    assert said["created"]["older"] == ["define", "config drive", "start"]


def test_what_cannot_be_is_refused_with_the_remedy(said: dict[str, Any]) -> None:
    assert "InstanceDeployFailure" in said["absent"]
    assert "start it on this host, or set [sluice] server_socket" in said["absent"]
    assert "region_mib: no room" in said["refused"]
    assert "flavor f: vgpu:memory_mib is missing" in said["invalid"]


def test_a_live_migration_is_refused_where_there_is_a_channel(said: dict[str, Any]) -> None:
    assert said["migrate"].startswith("MigrationPreCheckError")
    assert "migrate it cold, or shelve it" in said["migrate"]
    assert said["migrate_plain"] == "may migrate"


def test_a_suspended_instance_has_its_channel_taken_out(said: dict[str, Any]) -> None:
    taken_out = [{"sessions": {"uuid": UUID}}, {"unplug": {"uuid": UUID, "seconds": 15}}]
    assert said["suspended"] == [UUID, taken_out]
    # libvirt could not: the guest goes on with its channel
    assert "no room for the image" in said["failed"][0]
    assert said["failed"][1] == [*taken_out, {"plug": {"uuid": UUID}}]


def test_an_instance_is_not_suspended_under_a_program(said: dict[str, Any]) -> None:
    assert said["busy"].startswith("InstanceFaultRollback")
    assert "train.py, slot 0" in said["busy"]
    assert said["held"].startswith("InstanceFaultRollback")
    assert "does not release its channel" in said["held"]
