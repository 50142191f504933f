# SPDX-License-Identifier: Apache-2.0
"""Exchanges a one-time secret for this machine's token, at the controller that leads.

Used by enrol.py. The secret goes only to the controllers that were named, and to the one that they
say leads; no proxy is asked.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import urllib.error
import urllib.request
from typing import Any, Optional

from .told import TOKEN, EnrolError, NotYetError, RefusedError, Told, checked

PATIENCE_SECONDS = 30
MOST_REDIRECTS = 3


def token_for(told: Told, ca: str) -> str:
    """The token; of several controllers that of the one that answers.

    `ca` is the pool's CA as PEM; empty: the machine's CAs. Raises RefusedError for a secret that is
    used, expired or withdrawn, NotYetError if no controller can be reached, EnrolError else.
    """
    context = _context(ca)
    troubles = []
    for address in told.controller.split(","):
        scheme, place = split_scheme(address, bool(ca))
        url = f"{scheme}://{place}/v1/enrol"
        for _ in range(MOST_REDIRECTS):
            request = urllib.request.Request(
                url, data=b"", method="POST", headers={"Authorization": f"Bearer {told.enrolment}"}
            )
            try:
                with _opener(context).open(request, timeout=PATIENCE_SECONDS) as answer:
                    found = json.loads(answer.read(1 << 16))
                    token = found["secret"]
            except urllib.error.HTTPError as error:
                with error:
                    where = error.headers.get("Location", "")
                    if error.code == 307 and where.startswith(f"{scheme}://"):
                        url = where  # the one that leads
                        continue
                    if error.code == 503:
                        troubles.append(f"{address}: it does not lead")
                        break
                    if error.code in (401, 403):
                        raise RefusedError(f"controller {address}: {_detail(error)}") from None
                    raise EnrolError(f"controller {address}: {_detail(error)}") from None
            except (
                OSError,
                http.client.HTTPException,
                ValueError,
                KeyError,
                TypeError,
                RecursionError,
            ) as error:
                troubles.append(f"{address}: {error}")
                break
            return checked(f"controller {address}: secret", token, TOKEN, "its own log")
        else:
            troubles.append(f"{address}: it sends from one controller to the next")
    raise NotYetError(f"no controller answers: {'; '.join(troubles)}; it is tried again")


def split_scheme(address: str, tls: bool) -> tuple[str, str]:
    """http or https, and host:port; without a scheme it is TLS where there is a CA."""
    scheme, separator, place = address.partition("://")
    if separator:
        return scheme, place
    return ("https" if tls else "http"), address


def _context(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=ca or None)
    except (ssl.SSLError, ValueError) as error:
        raise EnrolError(f"the pool's CA cannot be used: {error}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A redirect is an answer: the secret goes nowhere by itself."""


def _opener(context: Optional[ssl.SSLContext]) -> urllib.request.OpenerDirector:  # noqa: UP045
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        _NoRedirects(),
        urllib.request.HTTPSHandler(context=context),
    )


def _detail(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError, RecursionError):
        return str(json.loads(error.read(1 << 16))["detail"])[:500]
    return f"HTTP {error.code}"
