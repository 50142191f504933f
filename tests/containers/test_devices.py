# SPDX-License-Identifier: Apache-2.0
"""What a device lets a container have, on whose account, and as whose the container counts."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.config.ini import ConfigError
from sluice.config.server import read_server_config
from sluice.config.server_containers import ContainerDevice, ContainersSection
from sluice.config.server_projects import ProjectsSection
from sluice.resources.container import Container
from sluice.server.containers.devices import ContainerDevices, bounded
from sluice.server.containers.given_folder import Place, place_of
from sluice.server.sessions.accounts import Accounts
from sluice.server.sessions.open_session import (
    OpenSession,
    RefusalError,
    pack_open_session,
    parse_open_session,
)
from sluice.server.sessions.records import Requester, trust_domain

A, B = "a" * 64, "b" * 64
SMALL = ContainerDevice(count=2, memory=2048, compute=25, processes=4, project="vision")


def asks(**wanted: Any) -> OpenSession:
    return parse_open_session(pack_open_session(**wanted))


def test_a_container_gets_what_its_device_is_and_not_what_it_says() -> None:
    for wanted in ({}, {"gmem_mib": 512}, {"vgpu_count": 2, "gmem_mib": 2048, "ratio_percent": 25}):
        found = bounded(asks(**wanted), "small", SMALL, "container a")
        request = found.request
        assert (request.count, request.memory_mib, request.compute_percent) == (2, 2048, 25)
        assert (found.job_processes, found.chosen) == (4, ())


def test_all_processes_of_a_container_have_one_job_and_no_other_container_has_it() -> None:
    tokens = [asks(), asks(job="0" * 32), asks(job="f" * 32, job_processes=9)]
    jobs = {bounded(asked, "small", SMALL, "container a").job for asked in tokens}
    assert len(jobs) == 1
    assert bounded(asks(), "small", SMALL, "container b").job not in jobs
    assert bounded(asks(), "other", SMALL, "container a").job not in jobs


@pytest.mark.parametrize(
    ("wanted", "variable"),
    [
        ({"vgpu_count": 3}, "SLUICE_VGPU asks for 3 vGPU"),
        ({"gmem_mib": 2049}, "SLUICE_GMEM asks for 2049 MiB"),
        ({"ratio_percent": 26}, "SLUICE_RATIO asks for 26 %"),
    ],
)
def test_more_than_the_device_is_refused_with_what_it_is(
    wanted: dict[str, int], variable: str
) -> None:
    with pytest.raises(RefusalError, match=f"{variable}, and this container's device sluice.io/"):
        bounded(asks(**wanted), "small", SMALL, "container a")


def test_a_default_slice_is_the_pools_default_whatever_is_asked_for() -> None:
    default = ContainerDevices().of("default")
    assert default
    request = bounded(asks(gmem_mib=99999, ratio_percent=100), "default", default, "c").request
    assert (request.count, request.memory_mib, request.compute_percent) == (1, 0, 0)


def test_a_process_that_wants_one_of_two_has_the_first_and_may_choose_another() -> None:
    assert bounded(asks(vgpu_count=1), "small", SMALL, "c").chosen == (0,)
    chosen = asks(vgpu_count=1, job="0" * 32, chosen=(1,))
    assert bounded(chosen, "small", SMALL, "c").chosen == (1,)


PROJECTS = ProjectsSection.model_validate(
    {"default": "everybody", "users": "root=admin,daemon=speech", "groups": "daemon=nlp"}
)
DEVICES = ContainerDevices(
    ContainersSection.model_validate(
        {"devices": "small=memory:2048 project:vision label:team-a, plain=memory:64"}
    )
)
DAEMON = pwd.getpwnam("daemon").pw_uid


def account(container: Container, uid: int = 0, devices: ContainerDevices = DEVICES) -> Any:
    found = Accounts(PROJECTS, devices).of(Requester("shm", "h", "p", uid=uid, container=container))
    return found.projects, found.label


def test_root_of_a_container_is_not_root_of_the_host() -> None:
    assert account(Container(A, "podman")) == (("everybody",), "")
    assert account(Container(A, "podman"), uid=DAEMON) == (("everybody",), "")
    section = ContainersSection.model_validate({"projects": "batch, web"})
    assert account(Container(A), devices=ContainerDevices(section)) == (("batch", "web"), "")


def test_a_rootless_container_works_on_its_users_account() -> None:
    for inside in (0, DAEMON, 100_000):
        container = Container(A, "podman", owner_uid=DAEMON)
        assert account(container, uid=inside) == (("speech",), "")


def test_the_device_says_the_project() -> None:
    assert account(Container(A, device="small")) == (("vision",), "team-a")
    assert account(Container(A, device="plain")) == (("everybody",), "")
    assert account(Container(A, owner_uid=DAEMON, device="small")) == (("vision",), "team-a")


def test_places_are_counted_by_container_and_rootless_ones_by_user() -> None:
    def owner(container: Container, uid: int) -> str:
        return Requester("shm", "h", "p", uid=uid, container=container).owner

    assert owner(Container(A), 0) == owner(Container(A), 1000) == f"container {A}"
    assert owner(Container(A, owner_uid=1000), 100_007) == "uid 1000"
    assert owner(Container(""), 7) == "uid 7"


def test_containers_with_the_hosts_namespaces_do_not_trust_one_another() -> None:
    one = Requester("shm", "h", "p", user_domain="0 user:[1] ipc:[1] pid:[1]")
    of_a = replace(one, container=Container(A))
    of_b = replace(one, container=Container(B))
    assert len({trust_domain("n", each) for each in (one, of_a, of_b)}) == 3


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("all=memory:1", "all is there already"),
        ("1st=memory:1", "cannot be a CDI device's name"),
        ("a=memory:1, a=memory:2", "names a device twice"),
        ("a=memory:-1", "greater than or equal to 0"),
        ("a=memory:1 memory:2", "says something twice"),
        ("a=mem:1", "mem:1 is none of count:"),
        ("a=project:a/b", "pattern"),
        ("a=count:0", "greater than or equal to 1"),
    ],
)
def test_a_device_that_cannot_be_is_refused_by_name(
    tmp_path: Path, line: str, complaint: str
) -> None:
    path = tmp_path / "server.conf"
    path.write_text(f"[containers]\ndevices = {line}\n")
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_server_config(path)
    assert f"{path}: [containers] devices = {line}" in str(caught.value)


def test_a_place_is_that_of_the_innermost_mount() -> None:
    info = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:20 / /run rw - tmpfs tmpfs rw\n"
        "3 2 8:2 /sub\\040dir /run/sluice rw - ext4 /dev/sdb rw\n"
    )
    assert place_of(Path("/run/sluice/containers"), info) == Place("8:2", "/sub dir/containers")
    assert place_of(Path("/run/sluicer"), info) == Place("0:20", "/sluicer")
    assert place_of(Path("/run"), info) == Place("0:20", "/")
    with pytest.raises(OSError, match="is on no mount"):
        place_of(Path("/run"), "")


def test_the_folder_of_a_test_is_found_on_this_machine(tmp_path: Path) -> None:
    place = place_of(tmp_path, Path("/proc/self/mountinfo").read_text())
    assert place.path.endswith(tmp_path.name)
    number = tmp_path.stat().st_dev
    assert place.device == f"{os.major(number)}:{os.minor(number)}"
