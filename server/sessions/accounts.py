# SPDX-License-Identifier: Apache-2.0
"""On whose account a local client works: what server.conf's [projects] says of its user or guest.

Used by sessions.lifecycle for clients of this host, whose user, groups and VM the kernel and
libvirt name. It promises that a client gets no project and no label that the host's operator did
not give it, whatever it asks for. Clients of the network have their token's project; the controller
knows.
"""

from __future__ import annotations

import contextlib
import grp
import pwd
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sluice.config.server_projects import ProjectsSection
from sluice.protocol.cuda_status import CudaStatus
from sluice.server.sessions.open_session import RefusalError
from sluice.server.sessions.records import Requester


@dataclass(frozen=True, slots=True)
class Account:
    """The projects that somebody may choose among, the first unless told, and the label."""

    projects: tuple[str, ...]
    label: str = ""

    def project(self, wanted: str, who: str) -> str:
        """The project that is wanted, if it is one of these; raises RefusalError."""
        if not wanted:
            return self.projects[0]
        if wanted not in self.projects:
            raise RefusalError(
                CudaStatus.NOT_PERMITTED,
                f"project {wanted} (SLUICE_PROJECT) is not for {who}, who may use "
                f"{', '.join(self.projects)}: set SLUICE_PROJECT to one of these, or have this "
                "host's operator add it to [projects] in server.conf",
            )
        return wanted


class Accounts:
    """What [projects] says."""

    def __init__(self, section: ProjectsSection | None = None) -> None:
        self._section = section or ProjectsSection()

    def of(self, requester: Requester) -> Account:
        """The account of a client of this host: its claim's, guest's, user's or a group's."""
        section = self._section
        if requester.claim:
            return Account((requester.claim.project,), requester.claim.label)
        kinds: list[tuple[str, Mapping[str, list[str]], Callable[[str], bool]]]
        if requester.domain_uuid:
            kinds = [
                ("vm", section.vms, {requester.domain_uuid, requester.domain_name}.__contains__)
            ]
        else:
            # the file's groups are looked up, not the process's: these may be 65,536
            groups = frozenset(requester.groups)
            kinds = [
                ("user", section.users, set(_user_names(requester.uid)).__contains__),
                ("group", section.groups, lambda name: not groups.isdisjoint(_group_ids(name))),
            ]
        projects = next(
            (found for _, mapping, is_own in kinds if (found := _first(mapping, is_own))),
            [section.default],
        )
        label = next(
            (
                found[0]
                for kind, _, is_own in kinds
                if (found := _first(_of_kind(section.labels, kind), is_own))
            ),
            "",
        )
        return Account(tuple(projects), label)


def _of_kind(labels: Mapping[str, list[str]], kind: str) -> dict[str, list[str]]:
    """Names of users, groups or guests and what they have, of owners such as user:alice."""
    owners = ((owner.partition(":"), found) for owner, found in labels.items())
    return {name: found for (kind_of, _, name), found in owners if kind_of == kind}


def _first(mapping: Mapping[str, list[str]], is_own: Callable[[str], bool]) -> list[str]:
    # in the file's order: of somebody in several groups the operator says which comes first
    return next((value for name, value in mapping.items() if is_own(name)), [])


def _user_names(uid: int) -> Iterator[str]:
    yield str(uid)
    with contextlib.suppress(KeyError):  # of a container: this host has only its number
        yield pwd.getpwuid(uid).pw_name


def _group_ids(name: str) -> Iterator[int]:
    if name.isdecimal():
        yield int(name)
    with contextlib.suppress(KeyError):
        yield grp.getgrnam(name).gr_gid
