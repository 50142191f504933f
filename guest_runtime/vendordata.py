# SPDX-License-Identifier: Apache-2.0
"""Finds what OpenStack tells this instance: `sluice` in its vendor_data2.json.

Used by enrol.py. Nova puts the document on the config drive and serves it from its metadata
service; cloud-init keeps a copy of the latter. Each place is looked at with a limit on time and
size, no proxy is asked and no redirect followed, and what is found is checked field by field. Where
several places tell something, the freshest comes first: a config drive is written once and its
secret is good for minutes, so it is stale after the first boot.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Optional

from .told import SECRET, URLS, EnrolError, NotYetError, Told, checked

METADATA_SERVICE = "http://169.254.169.254"
DOCUMENT = "openstack/latest/vendor_data2.json"
LABEL = "dev/disk/by-label/config-2"
CLOUD_INIT = "run/cloud-init/instance-data-sensitive.json"
DMI = "sys/class/dmi/id"
PATIENCE_SECONDS = 5.0
LONGEST_BYTES = 1 << 20
SEE = "docs/openstack.md"
#: What Nova's instances and those of clouds made of it show in their firmware tables.
PRODUCTS = ("OpenStack Nova", "OpenStack Compute")
ASSET_TAGS = ("OpenTelekomCloud", "SAP CCloud VM", "HUAWEICLOUD", "Samsung Cloud Platform VM")


def machine_id(system: Path) -> str:
    """This machine's UUID in its firmware tables; empty where there is none to be read."""
    return _firmware(system, "product_uuid").lower()


def is_instance(system: Path) -> bool:
    """Whether this machine looks like an instance of OpenStack."""
    return (
        _firmware(system, "product_name") in PRODUCTS
        or _firmware(system, "chassis_asset_tag") in ASSET_TAGS
        or (system / LABEL).exists()
    )


def told_by_openstack(system: Path, service: str = METADATA_SERVICE) -> list[Told]:
    """What the instance is told, the freshest first; empty: there is nothing for it anywhere.

    Raises NotYetError where its reservation is still being made or the metadata service does not
    answer, EnrolError where a place holds something that cannot be used and no other place does.
    """
    found: list[Told] = []
    troubles: list[EnrolError] = []
    for look in (_config_drive, _cloud_inits_copy, lambda _: _metadata_service(service)):
        try:
            if (told := look(system)) is not None:
                found.append(told)
        except EnrolError as error:
            troubles.append(error)
    if not found and troubles:
        raise next((t for t in troubles if not isinstance(t, NotYetError)), troubles[0])
    # one secret may stand in several places
    unique = list({told.enrolment: told for told in found}.values())
    return sorted(unique, key=lambda told: told.expires, reverse=True)


def parsed(content: bytes, origin: str) -> Optional[Told]:  # noqa: UP045 - guests have Python 3.9
    """What a vendor_data2.json says; None if it has nothing of Sluice."""
    if len(content) > LONGEST_BYTES:
        raise EnrolError(f"{origin} is longer than {LONGEST_BYTES >> 10} KiB; see {SEE}")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise EnrolError(f"{origin} is no JSON; see {SEE}") from None
    if not isinstance(document, dict):
        raise EnrolError(f"{origin} is no JSON object; see {SEE}")
    return _told(document.get("sluice"), origin)


def _told(data: Any, origin: str) -> Optional[Told]:  # noqa: UP045
    if data is None:
        return None
    if not isinstance(data, dict):
        raise EnrolError(f"{origin}: sluice is no JSON object; see {SEE}")
    if not data.get("reservation") and not data.get("enrolment"):
        raise NotYetError(
            f"{origin}: sluice.reservation is empty: the instance has no vGPU flavor, or its "
            "reservation is not made yet (sluice openstack check)"
        )
    reservation = data.get("reservation")
    if not isinstance(reservation, str) or len(reservation) > 120:
        raise EnrolError(f"{origin}: sluice.reservation is not what it should be; see {SEE}")
    return Told(
        source="openstack",
        origin=origin,
        controller=checked(f"{origin}: sluice.controller", data.get("controller"), URLS, SEE),
        enrolment=checked(f"{origin}: sluice.enrolment", data.get("enrolment"), SECRET, SEE),
        reservation=reservation,
        expires=_seconds(data.get("expires"), origin),
    )


def _seconds(text: Any, origin: str) -> float:
    if text is None:
        return 0.0
    try:
        # Python before 3.11 does not read the Z
        moment = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
        if moment.tzinfo is None:
            raise ValueError
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise EnrolError(f"{origin}: sluice.expires is no time with a zone; see {SEE}") from None


def _firmware(system: Path, name: str) -> str:
    try:
        return (system / DMI / name).read_text(errors="replace").strip()
    except OSError:
        return ""


def _read(path: Path, origin: str) -> Optional[bytes]:  # noqa: UP045
    try:
        with path.open("rb") as file:
            return file.read(LONGEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EnrolError(f"{origin} cannot be read: {error.strerror}; run it as root") from None


def _config_drive(system: Path) -> Optional[Told]:  # noqa: UP045
    device = system / LABEL
    if not device.exists():
        return None
    with _mounted(device) as folder:
        origin = f"the config drive's {DOCUMENT}"
        content = _read(folder / DOCUMENT, origin)
        return None if content is None else parsed(content, origin)


@contextlib.contextmanager
def _mounted(device: Path) -> Iterator[Path]:
    """The config drive's files; a folder is one that somebody mounted."""
    if device.is_dir():
        yield device
        return
    place = Path(tempfile.mkdtemp(prefix="sluice-config-drive-"))
    try:
        _command("mount", "-o", "ro,nosuid,nodev,noexec", str(device.resolve()), str(place))
        try:
            yield place
        finally:
            _command("umount", str(place))
    finally:
        with contextlib.suppress(OSError):
            place.rmdir()


def _command(*words: str) -> None:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnrolError(f"the config drive cannot be read: {words[0]}: {error}") from None
    if done.returncode:
        raise EnrolError(
            f"the config drive cannot be read: {words[0]}: {done.stderr.strip()[:200]}; run it as "
            "root"
        )


def _cloud_inits_copy(system: Path) -> Optional[Told]:  # noqa: UP045
    path = system / CLOUD_INIT
    try:
        content = _read(path, f"cloud-init's {path.name}")
        document = json.loads(content or b"{}")
        data = document["ds"]["vendordata2"]["sluice"]
    except (EnrolError, ValueError, RecursionError, KeyError, TypeError):
        return None  # a copy: what it lacks the metadata service has
    return _told(data, f"cloud-init's copy ({path.name}: ds.vendordata2)")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A redirect is an answer, and no good one: this service has no other place."""


def _metadata_service(service: str) -> Optional[Told]:  # noqa: UP045
    url = f"{service}/{DOCUMENT}"
    origin = f"the metadata service's {DOCUMENT}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        with opener.open(url, timeout=PATIENCE_SECONDS) as answer:
            content = b""
            while len(content) <= LONGEST_BYTES and (part := answer.read1(1 << 16)):
                content += part
                if time.monotonic() > deadline:
                    raise NotYetError(f"{origin} takes more than {PATIENCE_SECONDS:.0f} s")
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404:
                return None
            if error.code in range(300, 400):
                raise EnrolError(
                    f"{origin} redirects to another place, which is not followed: HTTP {error.code}"
                ) from None
            raise NotYetError(f"{origin} does not answer: HTTP {error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NotYetError(f"{origin} does not answer: {reason}") from None
    return parsed(content, origin)
