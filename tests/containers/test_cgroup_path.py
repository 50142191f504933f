# SPDX-License-Identifier: Apache-2.0
"""Cgroups as container engines name them, and as who would like to be another container does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.resources.container import Container
from sluice.server.containers.cgroup_path import container_at, paths_of

A, B = "a" * 64, "b" * 64
POD = "0f6ee3c8-8d7d-4b8e-9c39-3f1f5b3f3c11"
POD_WORD = POD.replace("-", "_")

NAMED = [
    (f"/system.slice/docker-{A}.scope", Container(A, "docker")),
    (f"/docker/{A}", Container(A, "docker")),
    (f"/machine.slice/libpod-{A}.scope/container", Container(A, "podman")),
    (f"/libpod_parent/libpod-{A}", Container(A, "podman")),
    (
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{A}.scope/container",
        Container(A, "podman", owner_uid=1000),
    ),
    (f"/system.slice/nerdctl-{A}.scope", Container(A, "containerd")),
    (f"/default/{A}", Container(A, "containerd")),
    (
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD_WORD}.slice/"
            f"cri-containerd-{A}.scope"
        ),
        Container(A, "containerd", POD),
    ),
    (
        f"/kubepods.slice/kubepods-pod{POD_WORD}.slice/crio-{A}.scope",
        Container(A, "cri-o", POD),
    ),
    (f"/kubepods/besteffort/pod{POD}/{A}", Container(A, "kubernetes", POD)),
    (f"/k8srig/kubepods/pod{POD}/{A}", Container(A, "kubernetes", POD)),
    (f"/kubepods/burstable/pod{'c' * 32}/{A}", Container(A, "kubernetes", "c" * 32)),
    ("/lxc.payload.web/init.scope", Container("web", "lxc")),
]


@pytest.mark.parametrize(("path", "container"), NAMED)
def test_engines_names_are_known(path: str, container: Container) -> None:
    assert container_at(path)[0] == container
    # what a process makes below its cgroup changes nothing, whatever it is called
    assert container_at(f"{path}/docker/{B}")[0] == container
    assert container_at(f"{path}/system.slice/libpod-{B}.scope")[0] == container


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/init.scope",
        "/user.slice/user-1000.slice/session-3.scope",
        "/system.slice/ssh.service",
        f"/machine.slice/libpod-conmon-{A}.scope",
        "/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt/emulator",
        "/process_api/191beb1dea01b5b56c09227dd35ad5d4",
        f"/system.slice/docker-{A[:-1]}.scope",
        f"/system.slice/docker-{A}.scope.d",
        f"/{A.upper()}",
        f"/kubepods/pod{POD}",
    ],
)
def test_what_is_no_container_is_none(path: str) -> None:
    assert not container_at(path)[0]


def test_the_folder_in_which_a_container_was_made_is_told() -> None:
    assert container_at(f"/machine.slice/libpod-{A}.scope/container")[1] == "/machine.slice"
    assert container_at(f"/docker/{A}/x/y")[1] == "/docker"
    assert container_at(f"/libpod-{A}")[1] == "/"


def test_a_server_inside_of_a_container_is_a_host_to_what_is_nested_there() -> None:
    base = f"/docker/{A}/init.scope"
    assert not container_at(f"/docker/{A}/work", base)[0]
    nested, parent = container_at(f"/docker/{A}/docker/{B}", base)
    assert nested == Container(B, "docker")
    assert parent == f"/docker/{A}/docker"
    # beside it, not in it
    assert container_at(f"/docker/{B}", base)[0] == Container(B, "docker")


def test_siblings_are_known_from_inside_of_a_cgroup_namespace() -> None:
    assert container_at(f"/../docker-{B}.scope")[0] == Container(B, "docker")


def test_both_versions_are_read() -> None:
    text = f"3:cpu,cpuacct:/docker/{A}\n1:name=systemd:/docker/{A} (deleted)\n0::/x:y\nrubbish\n:\n"
    assert paths_of(text) == {
        "cpu,cpuacct": f"/docker/{A}",
        "name=systemd": f"/docker/{A}",
        "": "/x:y",
    }


@given(st.text(max_size=300), st.text(max_size=100))
def test_nothing_that_stands_there_is_too_strange(text: str, base: str) -> None:
    for path in paths_of(text).values():
        container_at(path, base)
    container_at(text, base)
