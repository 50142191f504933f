# SPDX-License-Identifier: Apache-2.0
"""HTTPS for scheduler and API server: /filter, /prioritize, /preempt, /bind, /mutate, /healthz.

Run by __main__.py (`sluice-kubernetes extender`). Reads JSON of bounded size, and answers what is
no JSON with 400 and the reason. Who is not known by a certificate of [extender] client_ca_file,
where that is set, is no scheduler: /filter, /prioritize, /preempt and /bind answer 403.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from sluice.kubernetes.configuration import ExtenderSection, KubernetesConfig
from sluice.kubernetes.extender import Extender
from sluice.kubernetes.webhook import review

log = logging.getLogger("sluice.kubernetes")

#: The API server's own bound of a request is 3 MiB; with as many nodes' names as there can be.
MOST_BYTES = 8 << 20
#: Of each kind, whose bodies are read at once: 128 MiB of them at most.
MOST_AT_ONCE = 16
GRACE_SECONDS = 2.0  # for what is being answered when it stops
READ_SECONDS = 5.0  # that a body may take
CERTIFICATE_LOOK_SECONDS = 60.0


NOT_KNOWN = "show a certificate of [extender] client_ca_file: this is for the scheduler alone"


class CannotListen(Exception):
    """Certificate, key or address cannot be used; the text says why."""


def tls_context(section: ExtenderSection) -> ssl.SSLContext:
    """Of the files that the section names; raises CannotListen."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(section.cert_file, section.key_file)
        if section.client_ca_file:
            context.load_verify_locations(section.client_ca_file)
            context.verify_mode = ssl.CERT_OPTIONAL  # the API server shows none to a webhook
    except (OSError, ssl.SSLError) as error:
        raise CannotListen(
            f"{section.cert_file}, {section.key_file}: {error}; set [extender] cert_file and "
            "key_file to a certificate and its key"
        ) from None
    return context


def application(config: KubernetesConfig, extender: Extender) -> web.Application:
    """The handlers."""
    # who keeps the webhook busy keeps the scheduler's places free
    scheduling, reviewing = asyncio.Semaphore(MOST_AT_ONCE), asyncio.Semaphore(MOST_AT_ONCE)
    spellings = config.kubernetes.spellings

    def answers(
        what: Callable[[Mapping[str, Any]], Awaitable[Any]], *, known: bool = True
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            if known and config.extender.client_ca_file and not _certificate(request):
                return web.json_response({"error": NOT_KNOWN}, status=403)
            async with scheduling if known else reviewing:
                try:
                    async with asyncio.timeout(READ_SECONDS):
                        body = await request.read()
                except TimeoutError:
                    text = f"the body did not come within {READ_SECONDS:g} s"
                    return web.json_response({"error": text}, status=408)
                try:
                    asked = json.loads(body)
                    if not isinstance(asked, dict):
                        raise ValueError("it is no object")
                    found = await what(asked)
                except (ValueError, RecursionError) as error:
                    text = f"the body cannot be read: {str(error)[:300] or type(error).__name__}"
                    return web.json_response({"error": text}, status=400)
            return web.json_response(found)

        return handler

    async def filters(asked: Mapping[str, Any]) -> Any:
        return extender.filter(asked)

    async def prioritizes(asked: Mapping[str, Any]) -> Any:
        return extender.prioritize(asked)

    async def preempts(asked: Mapping[str, Any]) -> Any:
        return extender.preempt(asked)

    async def mutates(asked: Mapping[str, Any]) -> Any:
        return review(asked, spellings)

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(client_max_size=MOST_BYTES)
    app.add_routes(
        [
            web.post("/filter", answers(filters)),
            web.post("/prioritize", answers(prioritizes)),
            web.post("/preempt", answers(preempts)),
            web.post("/bind", answers(extender.bind)),
            web.post("/mutate", answers(mutates, known=False)),
            web.get("/healthz", healthy),
        ]
    )
    return app


def _certificate(request: web.Request) -> object:
    """Of whoever asks, checked by TLS; nothing where there is none."""
    transport = request.transport
    return transport.get_extra_info("peercert") if transport else None


@contextlib.asynccontextmanager
async def listening(config: KubernetesConfig, extender: Extender) -> AsyncIterator[ssl.SSLContext]:
    """Answers meanwhile; raises CannotListen."""
    section = config.extender
    context = tls_context(section)
    runner = web.AppRunner(
        application(config, extender), access_log=None, shutdown_timeout=GRACE_SECONDS
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, section.bind_addr, section.port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            raise CannotListen(
                f"{section.bind_addr}:{section.port}: {error.strerror}; set [extender] bind_addr "
                "and port to what is free"
            ) from None
        log.info("listening on %s:%d", section.bind_addr, section.port)
        yield context
    finally:
        await runner.cleanup()


async def renew_for_ever(section: ExtenderSection, context: ssl.SSLContext) -> None:
    """A certificate that was renewed is taken, until cancelled."""
    while True:
        await asyncio.sleep(CERTIFICATE_LOOK_SECONDS)
        try:
            context.load_cert_chain(section.cert_file, section.key_file)
        except (OSError, ssl.SSLError) as error:
            log.warning("%s: the certificate before it is kept: %s", section.cert_file, error)
