# SPDX-License-Identifier: Apache-2.0
"""The line to an etcd cluster: every call with a deadline, every failure a StoreError in words.

Used by etcd.py (the store) and controller.leadership.election. It owns the channel over all
endpoints and the session of etcd's user, which it renews when etcd no longer takes it. Nothing else
of the controller knows the client library (etcd3aio, loaded only where [store] kind = etcd).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from sluice.config.controller import StoreSection
from sluice.controller.store.store import RecordError, StoreError

CALL_SECONDS = 2.0
#: Of a page of keys: gRPC takes 4 MiB, and the next page may have larger values than this one.
PAGE_BYTES = 2_500_000
FIRST_PAGE_KEYS = 1000
PAGE_MOST_KEYS = 10_000

#: etcd has one gRPC code for several errors: its own clients, too, tell them apart by these texts,
#: which are part of its API (api/v3rpc/rpctypes). Of those here an absent or refused log-in.
NOT_LOGGED_IN = frozenset(
    {
        "etcdserver: user name is empty",
        "etcdserver: revision of auth store is old",
        "etcdserver: invalid auth token",
        "etcdserver: invalid auth management",
        "etcdserver: authentication is not enabled",
        "etcdserver: authentication failed, invalid user ID or password",
        "auth: authentication failed, password was given for no password user",
    }
)
NO_SPACE = "etcdserver: mvcc: database space exceeded"
TOO_MANY_REQUESTS = "etcdserver: too many requests"

T = TypeVar("T")


class UnreachableError(StoreError):
    """No answer came: what was asked may have happened or not."""


class AnswerTooLargeError(StoreError):
    """The answer was more than gRPC takes."""


class EtcdCluster:
    """Calls to etcd; open() first."""

    def __init__(self, section: StoreSection) -> None:
        try:
            import etcd3aio
        except ImportError as error:
            raise StoreError(
                f"[store] kind = etcd needs the package etcd3aio ({error}); install it with "
                "`pip install 'sluice-gpu[etcd]'`"
            ) from None
        self._section = section
        self._library = etcd3aio
        self._client: Any = None
        self.name = f"etcd at {', '.join(section.endpoints)}"

    async def open(self) -> None:
        """Makes the channel; raises StoreError for files that cannot be read."""
        section = self._section
        self._password = _read(section.password_file, "password_file").decode().strip()
        self._client = self._library.Etcd3Client(
            section.endpoints,
            rpc_max_attempts=1,
            tls_server_name=section.tls_name or _only_host(section.endpoints),
            ca_cert=_read(section.ca_file, "ca_file") or None,
            cert_chain=_read(section.cert_file, "cert_file") or None,
            cert_key=_read(section.key_file, "key_file") or None,
        )
        await self._client.connect()

    async def close(self) -> None:
        """Hangs up."""
        if self._client:
            await self._client.close()

    # what a transaction is made of

    def put(self, key: str, value: str, lease: int = 0) -> Any:
        """Writes a key."""
        return self._client.kv.txn_op_put(key, value, lease=lease)

    def delete(self, key: str, end: str | None = None) -> Any:
        """Deletes a key, or all from it up to another."""
        return self._client.kv.txn_op_delete(key, range_end=end)

    def read(self, key: str) -> Any:
        """Reads a key."""
        return self._client.kv.txn_op_get(key)

    def if_created_at(self, key: str, revision: int) -> Any:
        """Holds while the key is the one created at that revision; 0: there is none."""
        return self._client.kv.txn_compare_create_revision(key, revision)

    def if_value(self, key: str, value: str) -> Any:
        """Holds while the key has this value."""
        return self._client.kv.txn_compare_value(key, value)

    # calls

    async def transaction(
        self, compare: Sequence[Any], then: Sequence[Any], otherwise: Sequence[Any] = ()
    ) -> Any:
        """All of `then` if every comparison holds, else all of `otherwise`."""
        return await self._ask(
            lambda: self._client.kv.txn(compare, then, otherwise, timeout=CALL_SECONDS)
        )

    async def get(self, key: str) -> Any:
        """The key's entry (with key, value, create_revision), or None."""
        answer = await self._ask(lambda: self._client.kv.get(key, timeout=CALL_SECONDS))
        return answer.kvs[0] if answer.kvs else None

    async def get_range(self, first: str, end: str) -> list[tuple[str, bytes]]:
        """Every key from first up to end, in order, with its value, as of one moment."""
        return [entry async for page in self.pages(first, end) for entry in page]

    async def pages(self, first: str, end: str) -> AsyncGenerator[list[tuple[str, bytes]]]:
        """The same a page at a time; the next one is under way while the caller reads one.

        For each page etcd counts all the keys that are left, so pages are as large as an answer
        may be.
        """
        following = asyncio.create_task(self._page(first, end, 0, FIRST_PAGE_KEYS))
        try:
            more, revision = True, 0
            while more:
                answer = await following
                revision, more = revision or answer.header.revision, answer.more
                if more:
                    keys = len(answer.kvs) * PAGE_BYTES // answer.ByteSize()
                    start = answer.kvs[-1].key + b"\0"
                    following = asyncio.create_task(self._page(start, end, revision, keys))
                yield [(kv.key.decode(), kv.value) for kv in answer.kvs]
        finally:
            following.cancel()

    async def _page(self, start: str | bytes, end: str, revision: int, keys: int) -> Any:
        """At most so many keys; fewer where gRPC does not take an answer that large."""
        limit = max(1, min(keys, PAGE_MOST_KEYS))
        while True:
            try:
                return await self._ask(
                    lambda limit=limit: self._client.kv.get(  # type: ignore[misc]
                        start,
                        range_end=end,
                        revision=revision,
                        limit=limit,
                        timeout=CALL_SECONDS * 5,
                    )
                )
            except AnswerTooLargeError:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)

    async def revision(self, key: str) -> int:
        """The cluster's revision now."""
        answer = await self._ask(
            lambda: self._client.kv.get(key, count_only=True, timeout=CALL_SECONDS)
        )
        return int(answer.header.revision)

    async def compact(self, revision: int) -> None:
        """Lets etcd forget what keys were before a revision."""
        await self._ask(lambda: self._client.kv.compact(revision, timeout=CALL_SECONDS * 5))

    async def grant_lease(self, seconds: int) -> int:
        """A lease's id."""
        answer = await self._ask(lambda: self._client.lease.grant(seconds, timeout=CALL_SECONDS))
        return int(answer.ID)

    async def keep_lease(self, lease: int, timeout: float) -> bool:
        """Renews a lease once; False if there is no such lease any more."""

        async def renew() -> bool:
            stream = self._client.lease.keep_alive(lease)
            try:
                async with asyncio.timeout(timeout):
                    async for answer in stream:
                        return bool(answer.TTL > 0)
                return False
            finally:
                stream.cancel()

        return await self._ask(renew)

    async def revoke_lease(self, lease: int) -> None:
        """Ends a lease, and with it its keys."""
        await self._ask(lambda: self._client.lease.revoke(lease, timeout=CALL_SECONDS))

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        errors = self._library
        try:
            try:
                return await call()
            except errors.EtcdUnauthenticatedError:
                if not self._section.user:
                    raise
            except grpc.aio.AioRpcError as error:
                # etcd says so of a call without a token, or after its users were changed
                if not self._section.user or error.details() not in NOT_LOGGED_IN:
                    raise
            await self._log_in()
            return await call()
        except errors.EtcdUnauthenticatedError as error:
            raise self._not_logged_in(str(error)) from None
        except errors.EtcdPermissionDeniedError as error:
            raise self._not_permitted(str(error)) from None
        except (errors.EtcdError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            raise UnreachableError(
                f"{self.name}: {why}; start etcd, or set [store] endpoints"
            ) from None
        except grpc.aio.AioRpcError as error:
            raise self._explain(error) from None

    async def _log_in(self) -> None:
        self._client.set_token(None)  # etcd refuses even a log-in that comes with an old token
        answer = await self._client.auth.authenticate(
            self._section.user, self._password, timeout=CALL_SECONDS
        )
        self._client.set_token(answer.token)

    def _not_logged_in(self, text: str) -> StoreError:
        return StoreError(
            f"{self.name}: {text}; set [store] user and password_file as etcd's administrator "
            "gave them"
        )

    def _not_permitted(self, text: str) -> StoreError:
        return StoreError(
            f"{self.name}: {text}; give user {self._section.user or '(none)'} a role that reads "
            f"and writes keys under {self._section.prefix}"
        )

    def _explain(self, error: grpc.aio.AioRpcError) -> StoreError:
        text, code = error.details() or error.code().name, error.code()
        if text == NO_SPACE:
            return StoreError(
                f"{self.name}: {text}; compact and defragment etcd (`etcdctl defrag`), raise "
                "--quota-backend-bytes if need be, then `etcdctl alarm disarm`"
            )
        if text in NOT_LOGGED_IN:
            return self._not_logged_in(text)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and text != TOO_MANY_REQUESTS:
            # gRPC's own: the answer is longer than this side takes
            return AnswerTooLargeError(f"{self.name}: {text}")
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return RecordError(f"{self.name}: {text}")
        if code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
            return UnreachableError(f"{self.name}: {text}")
        return StoreError(f"{self.name}: {text} ({code.name})")


def prefix_end(prefix: str) -> str:
    """The end of the range of all keys that begin with the prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _read(path: Path | None, key: str) -> bytes:
    if path is None:
        return b""
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"[store] {key} = {path}: cannot be read ({error.strerror})") from None


def _only_host(endpoints: Sequence[str]) -> str | None:
    # gRPC checks one name for the whole list: with one endpoint it is that endpoint's
    hosts = {endpoint.rpartition(":")[0] for endpoint in endpoints}
    return hosts.pop() if len(hosts) == 1 else None
