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
import os
import pwd
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sluice.config.server_projects import ProjectsSection
from sluice.protocol.cuda_status import CudaStatus
from sluice.server.containers.devices import ContainerDevices
from sluice.server.sessions.open_session import RefusalError
from sluice.server.sessions.records import Requester


@dataclass(frozen=True, slots=True)
class Account:
    """The projects that somebody may choose among, the first unless told; label and name."""

    projects: tuple[str, ...]
    label: str = ""
    person: str = ""  # the user of this host; empty: a guest's, of whose users nothing is known

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
    """What [projects] says, and for containers [containers]."""

    def __init__(
        self, section: ProjectsSection | None = None, devices: ContainerDevices | None = None
    ) -> None:
        self._section = section or ProjectsSection()
        self._devices = devices or ContainerDevices()

    def of(self, requester: Requester) -> Account:
        """The account of a client of this host: its claim's, guest's, user's, else a group's.

        A container's is what its device says; else that of the user whose engine it is, and of
        root's engines' containers, whose users are none of this host's, [containers] projects.
        """
        if requester.claim:
            return Account((requester.claim.project,), requester.claim.label)
        account = self._of_container(requester) if requester.container else None
        account = account or self._of_host(requester)
        device = self._devices.of(requester.container.device)
        if device is None:
            return account
        projects = (device.project,) if device.project else account.projects
        return Account(projects, device.label or account.label)

    def _of_container(self, requester: Requester) -> Account | None:
        """None: that of the user whose container it is."""
        if requester.container.owner_uid:
            return None
        return Account(tuple(self._devices.section.projects) or (self._section.default,))

    def _of_host(self, requester: Requester) -> Account:
        section = self._section
        kinds: list[tuple[str, Mapping[str, list[str]], Callable[[str], bool]]]
        if requester.domain_uuid:
            kinds = [
                ("vm", section.vms, {requester.domain_uuid, requester.domain_name}.__contains__)
            ]
        else:
            # the file's groups are looked up, not the process's: these may be 65,536
            uid = requester.container.owner_uid or requester.uid
            groups = frozenset(
                groups_of(uid) if requester.container.owner_uid else requester.groups
            )
            kinds = [
                ("user", section.users, set(_user_names(uid)).__contains__),
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
        return Account(tuple(projects), label, _person(requester))


def _of_kind(labels: Mapping[str, list[str]], kind: str) -> dict[str, list[str]]:
    """Names of users, groups or guests and what they have, of owners such as user:alice."""
    owners = ((owner.partition(":"), found) for owner, found in labels.items())
    return {name: found for (kind_of, _, name), found in owners if kind_of == kind}


def _first(mapping: Mapping[str, list[str]], is_own: Callable[[str], bool]) -> list[str]:
    # in the file's order: of somebody in several groups the operator says which comes first
    return next((value for name, value in mapping.items() if is_own(name)), [])


def _person(requester: Requester) -> str:
    if requester.domain_uuid or requester.by_network:
        return ""
    *_, name = _user_names(requester.uid)
    return name if name != str(requester.uid) else f"uid {requester.uid}"


def _user_names(uid: int) -> Iterator[str]:
    yield str(uid)
    with contextlib.suppress(KeyError):  # of a container: this host has only its number
        yield pwd.getpwuid(uid).pw_name


def groups_of(uid: int) -> list[int]:
    """The groups of a user of this host, by its data base; none where it does not know the user."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)


def _group_ids(name: str) -> Iterator[int]:
    if name.isdecimal():
        yield int(name)
    with contextlib.suppress(KeyError):
        yield grp.getgrnam(name).gr_gid
