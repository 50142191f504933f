# SPDX-License-Identifier: Apache-2.0
"""The port that scheduler and API server ask, over TLS: who is answered, and what bodies may be."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from free_ports import free_port

from sluice.kubernetes import https_service
from sluice.kubernetes.cluster import Cluster
from sluice.kubernetes.configuration import KubernetesConfig
from sluice.kubernetes.extender import Extender
from sluice.kubernetes.https_service import MOST_BYTES, CannotListen, listening
from sluice.kubernetes.pool_follower import PoolFollower
from sluice.pool_client.access import Access, Credentials
from sluice.pool_client.async_client import AsyncPoolClient

FILTER = {"NodeNames": ["n1"], "Pod": {"metadata": {}, "spec": {}}}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for the service, and one for whoever asks it."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("tls", "scheduler"):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
                *("-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"),
            ],
            check=True,
            capture_output=True,
        )
    return folder


def config_of(keys: Path, *, client_ca: bool) -> KubernetesConfig:
    section: dict[str, Any] = {
        "bind_addr": "127.0.0.1",
        "port": free_port(),
        "cert_file": keys / "tls.crt",
        "key_file": keys / "tls.key",
    }
    if client_ca:
        section["client_ca_file"] = keys / "scheduler.crt"
    return KubernetesConfig.model_validate({"extender": section})


def extender_of(config: KubernetesConfig) -> Extender:
    pool = AsyncPoolClient(Access.of("127.0.0.1:9", Credentials()), trust_env=False)
    pool_follower = PoolFollower(config.kubernetes, pool, pool)
    return Extender(config.kubernetes, Cluster.__new__(Cluster), pool_follower)


class Client:
    """Whoever asks, with a certificate or none."""

    def __init__(self, config: KubernetesConfig, keys: Path) -> None:
        self._base = f"https://127.0.0.1:{config.extender.port}"
        self._keys = keys

    async def post(
        self, verb: str, body: bytes | dict[str, Any], *, shows: str = ""
    ) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(self._keys / "tls.crt"))
        if shows:
            context.load_cert_chain(self._keys / f"{shows}.crt", self._keys / f"{shows}.key")
        sent = {"json": body} if isinstance(body, dict) else {"data": body}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self._base}/{verb}", ssl=context, **sent) as answer,
        ):
            return answer.status, await answer.text()


async def asker(keys: Path, *, client_ca: bool) -> AsyncIterator[Client]:
    config = config_of(keys, client_ca=client_ca)
    async with listening(config, extender_of(config)):
        yield Client(config, keys)


def test_only_who_shows_the_schedulers_certificate_filters_and_binds(keys: Path) -> None:
    async def run() -> None:
        async for asks in asker(keys, client_ca=True):
            for verb in ("filter", "prioritize", "preempt", "bind"):
                assert (await asks.post(verb, FILTER))[0] == 403
                assert (await asks.post(verb, FILTER, shows="scheduler"))[0] == 200
            review = {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "object": {}}}
            assert (await asks.post("mutate", review))[0] == 200  # the API server shows none
            with pytest.raises(aiohttp.ClientError):  # another's certificate
                await asks.post("filter", FILTER, shows="tls")

    asyncio.run(run())


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind", "mutate"])
def test_a_body_that_is_no_object_is_refused_and_the_next_one_served(keys: Path, verb: str) -> None:
    async def run() -> None:
        async for asks in asker(keys, client_ca=False):
            deep = b"[" * 100_000 + b"]" * 100_000
            for body in (b"", b"null", b"[]", b'"x"', b"\xff\xfe", b"{", deep, b"NaN", b"{}x"):
                status, text = await asks.post(verb, body)
                assert status == 400, (body[:10], text)
                assert "the body cannot be read" in text
            assert (await asks.post(verb, b"x" * (MOST_BYTES + 1)))[0] == 413
            status, text = await asks.post(verb, {})
            assert status == (400 if verb == "mutate" else 200)
            assert (await asks.post("healthz", {}))[0] == 405

    asyncio.run(run())


def test_without_a_certificate_it_says_what_to_set(keys: Path) -> None:
    async def run() -> None:
        config = config_of(keys, client_ca=False)
        missing = config.extender.model_copy(update={"cert_file": keys / "none.crt"})
        other = config.model_copy(update={"extender": missing})
        with pytest.raises(CannotListen, match=r"set \[extender\] cert_file"):
            async with listening(other, extender_of(other)):
                pass
        async with listening(config, extender_of(config)):
            with pytest.raises(CannotListen, match="what is free"):
                async with listening(config, extender_of(config)):
                    pass

    asyncio.run(run())


def test_who_sends_slowly_is_let_go_and_keeps_nobody_else_waiting(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https_service, "READ_SECONDS", 0.5)

    async def run() -> None:
        config = config_of(keys, client_ca=False)
        context = ssl.create_default_context(cafile=str(keys / "tls.crt"))
        async with listening(config, extender_of(config)):
            slow = [
                await asyncio.open_connection("127.0.0.1", config.extender.port, ssl=context)
                for _ in range(https_service.MOST_AT_ONCE * 2)
            ]
            for _, writing in slow:
                writing.write(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            await asyncio.sleep(0.1)
            asks = Client(config, keys)
            assert (await asks.post("filter", FILTER))[0] == 200  # at once: other places
            assert (await asks.post("mutate", {}))[0] == 400  # once the slow ones are let go
            answers = [await reading.readline() for reading, _ in slow]
            assert all(b"408" in answer for answer in answers)
            for _, writing in slow:
                writing.close()

    asyncio.run(run())
