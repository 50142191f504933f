# SPDX-License-Identifier: Apache-2.0
"""The claims of this host: each has a folder of its own, with a socket for its processes.

Started by server.service; the platform's part on this host asks by claims.listener. What comes by a
claim's socket is the claim's, and draws on nothing but the claim's part of its reservation: the
folder is mounted into its containers and nowhere else. It promises that a claim that was prepared
is there after a restart of the server, and that releasing one ends what runs of it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluice.config.places import Places
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.container import Container
from sluice.resources.ends import End, EndCause
from sluice.resources.vgpu_request import RequestError
from sluice.server.claims.terms import ClaimTerms, read_terms
from sluice.server.containers.admission import Admission
from sluice.server.containers.given_folder import GivenFolder
from sluice.server.containers.identity import ContainerIdentities
from sluice.server.listeners.peers import Peer
from sluice.server.listeners.unix_socket import UnixListener
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.sessions.open_session import OpenSession, RefusalError
from sluice.server.sessions.records import Requester

log = logging.getLogger("sluice.server")

FOLDER = "claims"
SOCKET = "socket/server.sock"  # the folder of it is what containers have, as /run/sluice
RECORD = "claim.json"
#: Kubernetes has no node with more pods than 1,000 or so.
MOST_CLAIMS = 4096
#: sun_path without its final zero byte.
LONGEST_SOCKET_PATH = 107


class NoPlaceForClaim(Exception):
    """There is no place for another; the text says what to do."""


class ClaimAdmission(Admission):
    """Lets in whose container was given the claim's folder: a socket can be passed, a mount not."""

    def __init__(self, identities: ContainerIdentities, terms: ClaimTerms, folder: Path) -> None:
        super().__init__(identities)
        self._terms = terms
        self._folder = GivenFolder(folder)

    def take(self, terms: ClaimTerms) -> None:
        """Whoever comes from now on is held against these."""
        self._terms = terms

    def container_of(self, peer: Peer) -> Container:
        """The peer's container; raises RefusalError, PeerGone."""
        found = super().container_of(peer)
        if self._terms.pod and found.pod != self._terms.pod:
            raise RefusalError(
                CudaStatus.NOT_PERMITTED,
                f"this process is in no container of pod {self._terms.name} ({self._terms.pod}), "
                "by whose socket it came: ask for sluice.io/vgpu in its own pod",
            )
        if not self._folder.is_given_to(peer.pid):
            raise RefusalError(
                CudaStatus.NOT_PERMITTED,
                f"this process is in no container that has claim {self._terms.name}, by whose "
                "socket it came: name the claim in the container's resources.claims",
            )
        return found


class ClaimSocket(UnixListener):
    """A claim's socket: as the host's own, and whoever comes by it is of the claim."""

    def __init__(
        self,
        terms: ClaimTerms,
        path: Path,
        lifecycle: SessionLifecycle,
        arena_mib: int,
        identities: ContainerIdentities,
        places: Places,
    ) -> None:
        self._claim_admission = ClaimAdmission(identities, terms, path.parent)
        super().__init__(path, lifecycle, arena_mib, terms.name, self._claim_admission, places)
        self._terms = terms

    def take(self, terms: ClaimTerms) -> None:
        """Whoever comes from now on has these."""
        self._terms = terms
        self._claim_admission.take(terms)

    def _requester(self, peer: Peer, asked: OpenSession, container: Container) -> Requester:
        return replace(super()._requester(peer, asked, container), claim=self._terms)


class Claims:
    """Every claim that is prepared on this host."""

    def __init__(
        self,
        run_dir: Path,
        lifecycle: SessionLifecycle,
        arena_mib: int,
        identities: ContainerIdentities,
        places: Places,
    ) -> None:
        """`places` are those of all local clients."""
        self._identities = identities
        self._places = places
        self._folder = run_dir / FOLDER
        self._lifecycle = lifecycle
        self._arena_mib = arena_mib
        self._terms: dict[str, ClaimTerms] = {}
        self._sockets: dict[str, ClaimSocket] = {}

    def open(self) -> None:
        """Listens for the claims of the server before this one; raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o711)
        for record in sorted(self._folder.glob(f"*/{RECORD}")):
            try:
                terms = read_terms(json.loads(record.read_text()))
                if terms.uid != record.parent.name:
                    raise RequestError("uid", terms.uid, f"give {record.parent.name}")
                self._listen(terms)
            except (OSError, ValueError) as error:
                log.error("claim %s is not served: %s: %s", record.parent.name, record, error)

    async def close(self) -> None:
        """Stops listening; sessions go on, and the next server has the claims."""
        for listener in self._sockets.values():
            await listener.close()
        self._sockets.clear()

    def prepare(self, terms: ClaimTerms) -> tuple[ClaimTerms, Path]:
        """Lets a claim's processes in; its terms with the job's token, and its socket's folder.

        Asked again, it answers the same, with the terms as they are now. Raises NoPlaceForClaim,
        OSError.
        """
        known = self._terms.get(terms.uid)
        if known is None and len(self._terms) >= MOST_CLAIMS:
            raise NoPlaceForClaim(
                f"this host has {MOST_CLAIMS} claims: release those that are over, see "
                f"{self._folder}"
            )
        terms = replace(terms, job=known.job if known else secrets.token_hex(16))
        if terms != known or terms.uid not in self._sockets:
            path = self._folder / terms.uid / SOCKET
            if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
                raise NoPlaceForClaim(
                    f"{path} is too long for a socket: set [server] run_dir to a shorter one"
                )
            self._write(terms)
            self._listen(terms)
            log.info("claim %s (%s): prepared, %s", terms.uid, terms.name, terms.label)
        return terms, (self._folder / terms.uid / SOCKET).parent

    async def release(self, uid: str, why: str) -> bool:
        """Ends what runs of a claim and takes its socket away; False: it was not there."""
        terms = self._terms.pop(uid, None)
        if listener := self._sockets.pop(uid, None):
            await listener.close()
        shutil.rmtree(self._folder / uid, ignore_errors=True)
        end = End(EndCause.CHANNEL_REMOVED, why)
        for session in self._lifecycle.served:
            claim = session.requester.claim
            if claim is not None and claim.uid == uid and session.why is None:
                self._lifecycle.end(session, end)
        if terms:
            log.info("claim %s (%s): released, %s", uid, terms.name, why)
        return terms is not None

    @property
    def terms(self) -> Mapping[str, ClaimTerms]:
        """By UID."""
        return self._terms

    def sessions(self, uid: str) -> list[str]:
        """What runs of a claim, a line each."""
        return [
            session.requester.describe()
            for session in self._lifecycle.served
            if session.requester.claim is not None and session.requester.claim.uid == uid
        ]

    # within

    def _listen(self, terms: ClaimTerms) -> None:
        self._terms[terms.uid] = terms
        if listener := self._sockets.get(terms.uid):
            listener.take(terms)
            return
        path = self._folder / terms.uid / SOCKET
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)  # whichever user the container runs as
        path.parent.parent.chmod(0o711)
        listener = ClaimSocket(
            terms, path, self._lifecycle, self._arena_mib, self._identities, self._places
        )
        listener.open()
        self._sockets[terms.uid] = listener

    def _write(self, terms: ClaimTerms) -> None:
        folder = self._folder / terms.uid
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(dir=folder)  # of mode 0600: it has the job's token
        with os.fdopen(descriptor, "w") as file:
            json.dump(terms.to_record(), file)
            file.flush()
            os.fsync(file.fileno())
        Path(scratch).replace(folder / RECORD)


def as_answer(terms: ClaimTerms, folder: Path) -> dict[str, Any]:
    """What the platform's part is told of a claim that is prepared."""
    return {"uid": terms.uid, "folder": str(folder), "job": terms.job}
