# SPDX-License-Identifier: Apache-2.0
"""A real OpenID Connect provider: Canaille, with people and groups of a test, in memory.

Run by a Python that has it (tests/console/provider.py), never imported by tests:

    python canaille_provider.py DESCRIPTION.json

DESCRIPTION has `port`, `keys` (JWKs with private parts, the first signs), `client` (id, secret,
redirect) and `people` (name to password and groups). It serves until it is ended.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

from canaille import create_app  # type: ignore[import-not-found]
from canaille.app import models  # type: ignore[import-not-found]
from canaille.backends import Backend  # type: ignore[import-not-found]
from werkzeug.serving import WSGIRequestHandler, make_server  # type: ignore[import-not-found]


class Quiet(WSGIRequestHandler):  # type: ignore[misc]
    def log(self, *_: Any) -> None:
        """Nothing of it is wanted."""


def populate(description: dict[str, Any]) -> None:
    """The client, its people, their groups."""
    groups: dict[str, list[Any]] = {}
    for name, person in description["people"].items():
        user = models.User(
            user_name=name,
            formatted_name=name.title(),
            family_name=name.title(),
            display_name=name,
            emails=[f"{name}@example.org"],
            password=person["password"],
        )
        Backend.instance.save(user)
        for group in person["groups"]:
            groups.setdefault(group, []).append(user)
    for name, members in groups.items():
        Backend.instance.save(models.Group(display_name=name, members=members))
    client = description["client"]
    now = datetime.datetime.now(datetime.UTC)
    made = models.Client(
        client_id=client["id"],
        client_id_issued_at=now,
        client_secret=client["secret"],
        client_name="Sluice",
        client_uri="http://127.0.0.1",  # trusted: it asks for no consent
        redirect_uris=[client["redirect"]],
        grant_types=["authorization_code"],
        response_types=["code"],
        token_endpoint_auth_method="client_secret_basic",
        scope=["openid", "profile", "email", "groups"],
    )
    Backend.instance.save(made)
    made.audience = [made]
    Backend.instance.save(made)


def main() -> None:
    """Serves."""
    description = json.loads(Path(sys.argv[1]).read_text())
    port = description["port"]
    app = create_app(
        config={
            "SECRET_KEY": "a test's",
            "SERVER_NAME": f"127.0.0.1:{port}",
            "PREFERRED_URL_SCHEME": "http",
            "CANAILLE": {"DATABASE": "memory", "SMTP": None},
            "CANAILLE_OIDC": {"ACTIVE_JWKS": description["keys"]},
        }
    )
    with app.app_context(), Backend.instance.session():
        populate(description)
    make_server("127.0.0.1", port, app, threaded=True, request_handler=Quiet).serve_forever()


if __name__ == "__main__":
    main()
