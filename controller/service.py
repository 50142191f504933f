# SPDX-License-Identifier: Apache-2.0
"""The running controller: store, pool, grant service, gRPC and REST, started and stopped in order.

Called by controller.__main__ and by tests. It owns every task and socket of the controller. With
SQLite the store is read before anything is answered, so that a restarted controller never answers
from an empty pool; servers that call meanwhile wait. With etcd the listeners open first and refer
to the leader; a controller that is elected reads the store, serves until it is deposed, and is a
follower again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
import time
from collections.abc import AsyncIterator

import grpc

from sluice.config.controller import ControllerConfig, OpenStackSection
from sluice.config.descriptors import allow_many
from sluice.config.http_server import ConnectionLimits, GuardedServer
from sluice.config.ini import ConfigError
from sluice.config.peer_lines import CONTROLLER as PEERS
from sluice.console.app import add_console
from sluice.console.charts import Histories
from sluice.controller import garbage
from sluice.controller.alerts.own_rules import NamedRule, OwnRules, read_own_rules
from sluice.controller.alerts.watch import AlertWatch
from sluice.controller.api.app import build_app
from sluice.controller.api.request_ids import RequestIds
from sluice.controller.auth.access import Access, is_loopback
from sluice.controller.auth.browser_sessions import BrowserSessions
from sluice.controller.auth.enrolments import EnrolmentBook
from sluice.controller.auth.keystone import KeystoneTokens, ask_cloud
from sluice.controller.auth.node_guard import Guarded, NodeGuard
from sluice.controller.auth.oidc import RelyingParty
from sluice.controller.auth.oidc_provider import ProviderError
from sluice.controller.auth.people import PeopleBook
from sluice.controller.auth.tokens import Role, TokenBook
from sluice.controller.grant_service import GrantService
from sluice.controller.history.keeper import HistoryKeeper
from sluice.controller.history.prometheus import PrometheusHistory
from sluice.controller.leadership.election import Candidate, LeaderAddress, Term
from sluice.controller.leadership.leader_only import (
    LeaderOnlyGrpc,
    LeaderOnlyRest,
    Leadership,
    LeaderState,
)
from sluice.controller.metrics.meters import ControllerMeters
from sluice.controller.pool.placement.policies import POLICIES
from sluice.controller.pool.pool import Pool, Snapshot
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.store.etcd import EtcdStore
from sluice.controller.store.etcd_cluster import EtcdCluster
from sluice.controller.store.sqlite import SqliteStore
from sluice.controller.store.store import DeposedError, Store, StoreError
from sluice.controller.tls import TlsError, grpc_credentials, rest_options
from sluice.resources.first_tokens import FirstTokensError, read_first_tokens
from sluice.rpc import pool_pb2_grpc

log = logging.getLogger("sluice.controller")

GRPC_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    # a server has one stream of its own and one for each client that waits
    ("grpc.max_concurrent_streams", 8192),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # strangers connect and call nothing; a server's stream is a call
    ("grpc.max_connection_idle_ms", 60_000),
    # one that vanished is noticed by this
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 30_000),
)
MOST_GRPC_CONNECTIONS = 4096  # a server has one
#: Descriptors that no connection gets: the store's, files, sockets to Keystone and etcd.
KEPT_DESCRIPTORS = 128
# the store's thread asks a busy event loop for the interpreter; a commit waits for it a few times
SWITCH_SECONDS = 0.0005
AFTER_TROUBLE_SECONDS = 1.0
BREATH_SECONDS = 0.01  # in which a large pool's leader renews its lease while it loads


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never jump."""
        return time.monotonic()


class ListenError(Exception):
    """A port or a file that the settings name cannot be used; the message says what to do."""


def connections_within(descriptors: int, wanted: int) -> tuple[int, int]:
    """How many connections REST and gRPC may have, so that some descriptors are always left."""
    there_are = max(64, descriptors - KEPT_DESCRIPTORS)
    rest = min(wanted, there_are * 3 // 4)
    return rest, min(MOST_GRPC_CONNECTIONS, there_are - rest)


class Controller:
    """One sluice-controller."""

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config
        self._tasks: list[asyncio.Task[None]] = []
        self._leadership = Leadership()
        self._store: SqliteStore | None = None
        self._cluster: EtcdCluster | None = None
        self._meters = meters = ControllerMeters()
        self._rest_app = RequestIds(
            LeaderOnlyRest(self._leadership, meters.standing), meters.answered
        )
        self._keystone: KeystoneTokens | None = None
        self._own_rules: list[NamedRule] = []
        self._party = RelyingParty(config.oidc) if config.oidc.issuer else None
        self.rest_port = 0
        self.grpc_port = 0
        section = config.controller
        rest, nodes = connections_within(allow_many(), section.rest_connections)
        self._rest_bounds = ConnectionLimits(rest, min(section.rest_connections_of_address, rest))
        self._grpc_connections = nodes

    @property
    def grant_service(self) -> GrantService:
        """The grant service of a controller that leads."""
        assert self._leadership.leader_state
        return self._leadership.leader_state.grant_service

    async def start(self) -> None:
        """Opens the store and then the listeners; raises StoreError or ListenError."""
        sys.setswitchinterval(SWITCH_SECONDS)
        section = self._config.openstack
        if section.vendordata:
            try:
                self._keystone = KeystoneTokens(ask_cloud(section.cloud), section.users)
            except OSError as error:
                raise ListenError(f"[openstack] vendordata: {error}") from None
        if self._party is not None:
            try:
                self._party.client_secret()
            except ProviderError as error:
                raise ListenError(f"[oidc]: {error}") from None
        try:
            self._own_rules = read_own_rules(self._config.alerts.rules_file)
        except ConfigError as error:
            raise ListenError(f"[alerts] rules_file: {error}") from None
        most = ("grpc.max_allowed_incoming_connections", self._grpc_connections)
        self._grpc = grpc.aio.server(options=(*GRPC_OPTIONS, most))
        self._garbage = asyncio.create_task(garbage.tend())
        if self._config.store.kind == "etcd":
            await self._start_as_candidate()
        else:
            await self._start_alone()

    async def _start_alone(self) -> None:
        section, shares = self._config.controller, self._config.pool
        self._store = store = SqliteStore(
            section.store,
            synchronous=section.store_synchronous,
            ended_kept=shares.ended_grants_kept,
            events_kept=shares.events_kept,
        )
        try:
            with self._leadership.loading(), garbage.held():
                await self._open_grpc()
                leader_state = await self._make_leader_state(store, await store.load(), None)
                self._leadership.leader_state = leader_state
            await self._first_token(leader_state)
            await self._open_rest()
        except (ListenError, StoreError):
            await self._grpc.stop(None)
            await store.close()
            raise
        self._tasks.append(asyncio.create_task(leader_state.grant_service.tick()))
        self._tasks += leader_state.begin_watching()
        log.info("serving: %s, store %s", self._where(), section.store)

    async def _start_as_candidate(self) -> None:
        section = self._config.store
        self._cluster = cluster = EtcdCluster(section)
        await cluster.open()
        await self._open_grpc()
        await self._open_rest()
        host = self._config.controller.advertise_addr or self._config.controller.bind_addr
        host = f"[{host}]" if ":" in host else host
        me = LeaderAddress(f"{host}:{self.rest_port}", f"{host}:{self.grpc_port}")
        candidate = Candidate(cluster, section.prefix, section.lease_seconds, me)
        # not itself, once it only may be: that would send requesters round in a circle
        self._leadership.leader = lambda: (
            candidate.leader if candidate.leader != me or self._leadership.serving else None
        )
        self._leadership.trouble = lambda: candidate.trouble
        self._tasks.append(asyncio.create_task(self._follow_and_lead(cluster, candidate)))
        log.info("waiting to lead: %s, store %s", self._where(), cluster.name)

    async def _follow_and_lead(self, cluster: EtcdCluster, candidate: Candidate) -> None:
        """Runs for ever."""
        while True:
            term = await candidate.campaign()
            began = time.monotonic()
            try:
                async with self._leading(cluster, term) as leader_state:
                    log.info(
                        "leading: %d node(s), %d grant(s), loaded in %.2f s",
                        len(leader_state.grant_service.pool.nodes),
                        len(leader_state.grant_service.pool.grants),
                        time.monotonic() - began,
                    )
                    await leader_state.grant_service.stepped_down.wait()
            except StoreError as error:
                log.error("this controller cannot lead: %s", error)
            except Exception:
                log.exception("this controller stops leading for an error of its own")
            candidate.leader = None
            log.warning("this controller does not lead any more")
            if time.monotonic() - began < AFTER_TROUBLE_SECONDS:
                await asyncio.sleep(AFTER_TROUBLE_SECONDS)  # another may do better

    @contextlib.asynccontextmanager
    async def _leading(self, cluster: EtcdCluster, term: Term) -> AsyncIterator[LeaderState]:
        shares = self._config.pool
        store = EtcdStore(
            cluster,
            term,
            self._config.store.prefix,
            ended_kept=shares.ended_grants_kept,
            events_kept=shares.events_kept,
        )
        tasks = [asyncio.create_task(term.hold())]
        try:
            with self._leadership.loading(), garbage.held():
                leader_state = await self._make_leader_state(store, await store.load(), term)
                term.check()
                await self._first_token(leader_state)
                deposed = DeposedError(f"{cluster.name}: the leader's lease has ended")
                tasks[0].add_done_callback(lambda _: leader_state.grant_service.step_down(deposed))
                tasks.append(asyncio.create_task(leader_state.grant_service.tick()))
                tasks += leader_state.begin_watching()
                self._leadership.leader_state = leader_state
            try:
                yield leader_state
            finally:
                self._leadership.leader_state = None
                leader_state.grant_service.step_down(deposed)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await store.close()
            await term.resign()

    async def _make_leader_state(
        self, store: Store, snapshot: Snapshot, term: Term | None
    ) -> LeaderState:
        shares = self._config.pool
        ids = random.Random()  # seeded by the system; an id is no secret
        pool = Pool(
            SystemClock(),
            lambda: f"{ids.getrandbits(64):016x}",
            vgpu_count=shares.vgpu_count,
            node_timeout_seconds=shares.node_timeout_seconds,
            ended_kept=shares.ended_grants_kept,
            job_sessions=shares.job_sessions,
            job_linger_seconds=shares.job_linger_seconds,
            ageing_seconds=shares.ageing_seconds,
            over_quota_waits=shares.over_quota == "wait",
            opening_seconds=shares.opening_seconds,
            hands_over=True,
            on_preempt=shares.on_preempt,
            max_suspended_seconds=shares.max_suspended_seconds,
            memory_oversubscription=shares.memory_oversubscription,
            policy=POLICIES[shares.policy](),
            sharing=shares.sharing,
            snapshot=snapshot,
        )
        await asyncio.sleep(BREATH_SECONDS)
        grant_service = GrantService(pool, store, shares.waiting_line_seconds, self._meters)
        await asyncio.sleep(BREATH_SECONDS)
        service = PoolService(grant_service, shares.heartbeat_seconds, shares.key_seconds)
        tokens = TokenBook(store, snapshot.documents)
        access = Access(
            self._config.auth,
            tokens,
            EnrolmentBook(store, tokens, snapshot.documents),
            loopback_only=is_loopback(self._config.controller.bind_addr),
            people=PeopleBook(store, self._config.oidc, snapshot.documents),
        )
        console = self._config.console
        browsers = (
            BrowserSessions(access, snapshot.documents, seconds=console.session_hours * 3600)
            if console.enabled
            else None
        )
        section = self._config.alerts
        alerts = None
        if section.enabled:
            alerts = AlertWatch(grant_service, section, own=OwnRules(self._own_rules))
        app = build_app(
            grant_service,
            service,
            shares.key_seconds,
            access,
            documents=snapshot.documents,
            requests_per_second=self._config.auth.requests_per_second,
            openstack=self._openstack(),
            keystone=self._keystone,
            browsers=browsers,
            alerts=alerts,
        )
        history = self._history(pool) if browsers is not None else None
        if browsers is not None:
            prometheus = PrometheusHistory(console) if console.prometheus_url else None
            histories = Histories(history, prometheus)
            add_console(app, grant_service, browsers, histories, alerts, self._party)
        return LeaderState(
            grant_service,
            service,
            app,
            access,
            lambda: term is None or term.is_current,
            history,
            alerts,
        )

    def _history(self, pool: Pool) -> HistoryKeeper | None:
        section = self._config.console
        if not section.history:
            return None
        beside = self._config.controller.store.with_name("history.db")
        return HistoryKeeper(pool, section.history_file or beside)

    async def _first_token(self, leader_state: LeaderState) -> None:
        """Makes the admin token of a new pool: it is printed here, once, and written nowhere.

        Where the configuration names a file with the first tokens' hashes, those are the tokens.
        """
        tokens = leader_state.access.tokens
        if tokens.tokens:
            return
        try:
            if await self._adopted_first_tokens(tokens):
                return
            token, secret = await tokens.create(Role.ADMIN, by="first run", name="first run")
        except DeposedError:
            raise
        except StoreError as error:
            log.error("the pool has no admin token yet: it cannot be stored (%s)", error)
            return
        print(
            f"sluice-controller: admin token {token.id} of this new pool, shown this once:\n"
            f"    {secret}",
            flush=True,
        )

    async def _adopted_first_tokens(self, tokens: TokenBook) -> bool:
        """Whether the tokens of [auth] first_tokens_file are the pool's now; raises StoreError."""
        if (file := self._config.auth.first_tokens_file) is None:
            return False
        try:
            first = read_first_tokens(file)
        except FirstTokensError as error:
            log.error("%s; the pool gets one admin token instead", error)
            return False
        await tokens.adopt(first.tokens)
        log.info("the new pool has the %d tokens of %s", len(first.tokens), file)
        return True

    async def _guarded(self) -> Guarded | None:
        await self._leadership.settled()
        leader_state = self._leadership.serving
        if leader_state is None:
            return None
        return Guarded(leader_state.access, leader_state.grant_service.pool)

    async def _open_grpc(self) -> None:
        section, tls = self._config.controller, self._config.tls
        try:
            credentials, self._rest_tls = grpc_credentials(tls), rest_options(tls)
        except TlsError as error:
            raise ListenError(str(error)) from None
        guard = NodeGuard(LeaderOnlyGrpc(self._leadership), self._guarded)
        pool_pb2_grpc.add_PoolServicer_to_server(guard, self._grpc)
        host = f"[{section.bind_addr}]" if ":" in section.bind_addr else section.bind_addr
        try:
            address = f"{host}:{section.grpc_port}"
            self.grpc_port = (
                self._grpc.add_secure_port(address, credentials)
                if credentials
                else self._grpc.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise ListenError(
                f"gRPC cannot listen on {host}:{section.grpc_port} ({error}); set [controller] "
                "bind_addr and grpc_port, or end what uses the port"
            ) from None
        await self._grpc.start()

    async def _open_rest(self) -> None:
        section = self._config.controller
        self._warn_of_open_doors()
        host = f"[{section.bind_addr}]" if ":" in section.bind_addr else section.bind_addr
        self._rest = GuardedServer(
            "REST", self._rest_app, self._rest_bounds, PEERS, **self._rest_tls
        )
        try:
            self.rest_port = self._rest.listen(section.bind_addr, section.rest_port)
        except OSError as error:
            raise ListenError(
                f"REST cannot listen on {host}:{section.rest_port} ({error.strerror}); set "
                "[controller] bind_addr and rest_port, or end what uses the port"
            ) from None
        self._tasks.append(asyncio.create_task(self._rest.run_until_closed()))

    def _warn_of_open_doors(self) -> None:
        if is_loopback(self._config.controller.bind_addr):
            return
        if self._config.auth.required == "no":
            log.warning(
                "[auth] required = no: whoever reaches %s has the rights of [auth] local = %s",
                self._config.controller.bind_addr,
                self._config.auth.local,
            )
        if not self._config.tls.cert_file:
            log.warning(
                "no [tls] cert_file: tokens cross the network in the clear; make certificates "
                "with `sluice ca`"
            )

    def _openstack(self) -> OpenStackSection:
        section, own = self._config.openstack, self._config.controller
        if section.guest_address:
            return section
        host = own.advertise_addr or own.bind_addr
        address = f"[{host}]:{own.rest_port}" if ":" in host else f"{host}:{own.rest_port}"
        return section.model_copy(update={"guest_address": address})

    def _where(self) -> str:
        host = self._config.controller.bind_addr
        return f"REST {host}:{self.rest_port}, gRPC {host}:{self.grpc_port}"

    async def stop(self) -> None:
        """Closes the listeners, then the store; grants stay in it, and another may lead at once."""
        self._garbage.cancel()
        self._rest.should_exit = True
        self._rest.force_exit = True
        for task in self._tasks[1:]:
            task.cancel()  # a leader resigns, so that its streams are told where to go
        await self._grpc.stop(0.2)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._store:
            await self._store.close()
        if self._cluster:
            await self._cluster.close()
        log.info("stopped")
