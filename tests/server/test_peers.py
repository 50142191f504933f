# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of a process at the other end of a Unix socket."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sluice.config.server_projects import ProjectsSection
from sluice.server.listeners.peers import MOST_GROUPS, Peer, peer_of
from sluice.server.sessions.accounts import Accounts
from sluice.server.sessions.records import Requester

CLIENT = """
import os, socket, sys
first, count, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if count >= 0:
    os.setgroups(range(first, first + count))
connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connected.connect(path)
sys.stdin.read()
"""


@contextlib.contextmanager
def client(folder: Path, *words: object) -> Iterator[Peer]:
    """A process that has connected, as peer_of knows it."""
    path = folder / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(60)
        command: Sequence[str] = [sys.executable, "-c", CLIENT, *map(str, words), str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            with listener.accept()[0] as connected:
                peer = peer_of(connected)
            try:
                assert peer.pid == process.pid
                yield peer
            finally:
                os.close(peer.pidfd)
                process.kill()


def test_a_process_with_our_groups_has_them(tmp_path: Path) -> None:
    with client(tmp_path, 0, -1) as peer:
        assert sorted(peer.groups) == sorted(os.getgroups())
        assert (peer.uid, peer.gid) == (os.getuid(), os.getgid())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a process groups")
@pytest.mark.parametrize("count", [0, 1, 64, 65, 256, 257, 300, 3000, MOST_GROUPS])
def test_all_groups_of_a_process_are_read(tmp_path: Path, count: int) -> None:
    first = 100_000
    with client(tmp_path, first, count) as peer:
        assert sorted(peer.groups) == list(range(first, first + count))
        # the last of them counts like any other
        section = ProjectsSection.model_validate(
            {"groups": f"{first + count - 1}=vision", "labels": f"group:{first + count - 1}=team-a"}
        )
        account = Accounts(section).of(Requester("shm", "h", "p", uid=4711, groups=peer.groups))
        given = (("vision",), "team-a") if count else (("default",), "")
        assert (account.projects, account.label) == given
