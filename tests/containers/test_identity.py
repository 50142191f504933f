# SPDX-License-Identifier: Apache-2.0
"""Who a process is when its host's answers are strange: two containers, an end, another's pid."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.resources.container import Container
from sluice.server.containers.identity import (
    ContainerIdentities,
    ContainerUnclear,
    cgroup_folders,
    has_ended,
)
from sluice.server.listeners.peers import Peer, PeerGone, start_time_of

A, B = "a" * 64, "b" * 64


@pytest.fixture(scope="module")
def identities() -> ContainerIdentities:
    return ContainerIdentities()


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], Peer]]:
    with subprocess.Popen([*words, "cat"], stdin=subprocess.PIPE) as started:
        pidfd = os.pidfd_open(started.pid)
        try:
            yield started, Peer(started.pid, 0, 0, start_time_of(started.pid), pidfd)
        finally:
            started.kill()
            os.close(pidfd)


def test_a_process_of_this_host_is_in_no_container(identities: ContainerIdentities) -> None:
    with process() as (_, peer):
        assert not identities.of(peer)


def test_an_engine_that_has_one_hierarchy_only_is_enough(identities: ContainerIdentities) -> None:
    found = identities.named({"": "/", "pids": f"/docker/{A}", "name=systemd": "/x"})
    assert found == Container(A, "docker")


def test_cgroups_of_two_containers_are_nobodys(identities: ContainerIdentities) -> None:
    paths = {"memory": f"/docker/{A}", "pids": f"/machine.slice/libpod-{B}.scope"}
    with pytest.raises(ContainerUnclear, match="docker aaaaaaaaaaaa and podman bbbbbbbbbbbb"):
        identities.named(paths)


def test_a_users_cgroup_is_his_in_whichever_hierarchy_it_shows(
    identities: ContainerIdentities,
) -> None:
    path = f"/user.slice/user-1000.slice/user@1000.service/libpod-{A}.scope"
    for paths in ({"": path, "pids": f"/libpod-{A}"}, {"pids": f"/libpod-{A}", "": path}):
        assert identities.named(paths).owner_uid == 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_a_folder_that_was_given_to_a_user_makes_his_containers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In it he makes cgroups, and calls them as an engine of root's would."""
    identities = ContainerIdentities()
    (tmp_path / "given").mkdir()
    os.chown(tmp_path / "given", 1234, 1234)
    monkeypatch.setattr(identities, "_folders", {"": str(tmp_path)})
    assert identities.named({"": f"/given/docker-{A}.scope"}).owner_uid == 1234
    assert identities.named({"": f"/docker-{A}.scope"}).owner_uid == 0


def test_a_process_that_has_ended_is_nobody(identities: ContainerIdentities) -> None:
    """A zombie is in the root cgroup of version 1; it must not count as the host's process."""
    with process() as (started, peer):
        os.kill(started.pid, 9)
        os.waitid(os.P_PIDFD, peer.pidfd, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{started.pid}/cgroup").exists()
        assert has_ended(peer.pidfd)
        with pytest.raises(PeerGone):
            identities.of(peer)
        started.wait()
        with pytest.raises(PeerGone):
            identities.of(peer)


def test_a_pid_that_is_anothers_now_is_not_taken_for_the_peers(
    identities: ContainerIdentities,
) -> None:
    with process() as (gone, peer):
        gone.kill()
        gone.wait()
        with process() as (other, _):
            # the number leads to a process that lives; the pidfd is still the peer's
            reused = Peer(other.pid, 0, 0, peer.start_time, peer.pidfd)
            with pytest.raises(PeerGone):
                identities.of(reused)


USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
OWN_PIDS = ("--pid", "--fork", "--kill-child")


def child_of(identities: ContainerIdentities, *words: str) -> Container:
    """Who the child of a command is, once that has become `cat`."""
    with process(*words) as (started, _):
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
        while not (found := children.read_text().split()):
            pass
        pid = int(found[0])
        while Path(f"/proc/{pid}/comm").read_text() != "cat\n":
            pass
        pidfd = os.pidfd_open(pid)
        try:
            return identities.of(Peer(pid, 0, 0, start_time_of(pid), pidfd))
        finally:
            os.close(pidfd)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
def test_a_users_container_has_its_maker_as_owner(identities: ContainerIdentities) -> None:
    """As a rootless engine makes it, where it has no cgroups."""
    found = child_of(identities, *USER, "unshare", "--user", "--map-root-user", *OWN_PIDS)
    assert (found.engine, found.owner_uid) == ("namespace", 65534)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
def test_a_user_of_a_container_does_not_become_the_hosts_user_of_that_number(
    identities: ContainerIdentities,
) -> None:
    """By namespaces that it makes inside: the container stays that of root's engine."""
    inside = (*USER, "unshare", "--user", "--map-root-user")
    found = child_of(identities, "unshare", *OWN_PIDS, *inside)
    assert (found.engine, found.owner_uid) == ("namespace", 0)


def test_hierarchies_are_found_where_they_are_mounted() -> None:
    info = (
        "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
        "32 31 0:29 / /c/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 31 0:30 / /c/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
        "34 31 0:31 /docker/x /c/pids rw - cgroup cgroup rw,pids\n"
        "rubbish\n"
    )
    assert cgroup_folders(info) == {
        "": "/sys/fs/cgroup",
        "cpu,cpuacct": "/c/cpu,cpuacct",
        "name=systemd": "/c/systemd",
    }
