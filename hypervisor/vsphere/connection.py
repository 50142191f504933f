# SPDX-License-Identifier: Apache-2.0
"""A session with one vCenter: TLS that is checked first, login, and errors in our own words.

Used by service.py and the commands. Nothing is sent before the certificate is checked: by the CAs
and the name, or by its SHA-256 thumbprint alone. With a thumbprint, the certificate that has it is
the one anchor of trust of every connection that follows, so none of them can be another's. Calls
block: the service makes them in threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from typing import Any
from xml.parsers.expat import ExpatError

from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import vim, vmodl

from sluice.config.vsphere import Credentials, VcenterSection
from sluice.hypervisor.vsphere.errors import (
    BadCertificate,
    BadLogin,
    SessionLost,
    Unreachable,
    VsphereError,
)

CONNECT_SECONDS = 15.0
SLACK_SECONDS = 30  # beyond the longest call, which is the wait for changes


class Vcenter:
    """A session; close() ends it."""

    def __init__(self, section: VcenterSection, credentials: Credentials) -> None:
        """Connects and logs in; raises Unreachable, BadCertificate or BadLogin."""
        self.section = section
        self.address = f"{section.host}:{section.port}"
        self.tls, self.thumbprint = _checked_tls(section)
        with self.errors():
            try:
                self.instance = SmartConnect(
                    host=section.host,
                    port=section.port,
                    user=credentials.user,
                    pwd=credentials.password,
                    sslContext=self.tls,
                    httpConnectionTimeout=section.poll_seconds + SLACK_SECONDS,
                    connectionPoolTimeout=-1,
                )
            except vim.fault.InvalidLogin:
                raise BadLogin(
                    f"vCenter {self.address} does not take user {credentials.user} with this "
                    "password; see [vcenter] credentials_file"
                ) from None
            self.content = self.instance.RetrieveContent()

    def close(self) -> None:
        """Logs out, if anybody still listens."""
        with contextlib.suppress(Exception):
            Disconnect(self.instance)

    def session_lost(self) -> SessionLost:
        """What is said of a session that is over."""
        return SessionLost(f"the session with vCenter {self.address} is over")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what pyvmomi raises into this package's errors; faults of a call keep their own."""
        try:
            yield
        except (vim.fault.NotAuthenticated, vmodl.fault.SecurityError) as error:
            if isinstance(error, vim.fault.NoPermission) and not isinstance(
                error, vim.fault.NotAuthenticated
            ):
                raise
            raise self.session_lost() from None
        except ssl.SSLCertVerificationError as error:
            raise BadCertificate(_bad(self.section, error.verify_message)) from None
        except (OSError, http.client.HTTPException, ExpatError) as error:
            raise Unreachable(
                f"vCenter {self.address} does not answer ({error or type(error).__name__}); see "
                "[vcenter] host and port"
            ) from None

    def wait(self, task: Any) -> None:
        """Waits for a task; raises VsphereError with what vCenter says of its failure."""
        collector = self.content.propertyCollector
        kinds = vmodl.query.PropertyCollector
        spec = kinds.FilterSpec(
            objectSet=[kinds.ObjectSpec(obj=task)],
            propSet=[kinds.PropertySpec(type=vim.Task, pathSet=["info.state", "info.error"])],
        )
        found = _values(collector.RetrieveContents([spec])[0])
        if found.get("info.state") not in ("success", "error"):
            watch = collector.CreatePropertyCollector()
            try:
                watch.CreateFilter(spec, partialUpdates=False)
                version = ""
                while found.get("info.state") not in ("success", "error"):
                    options = kinds.WaitOptions(maxWaitSeconds=self.section.poll_seconds)
                    if update := watch.WaitForUpdatesEx(version, options):
                        version = update.version
                        for change in update.filterSet[0].objectSet[0].changeSet:
                            found[change.name] = change.val
            finally:
                watch.Destroy()
        if found["info.state"] == "error":
            error = found.get("info.error")
            why = getattr(error, "localizedMessage", None) or type(error).__name__
            raise VsphereError(f"vCenter {self.address} did not do it: {why}")


def thumbprint_of(section: VcenterSection) -> str:
    """The SHA-256 thumbprint of whoever answers: no proof until a person compares it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return hashlib.sha256(_handshake(section, context)).hexdigest()


def _values(content: Any) -> dict[str, Any]:
    return {each.name: each.val for each in content.propSet}


def _checked_tls(section: VcenterSection) -> tuple[ssl.SSLContext, str]:
    """The TLS settings of every connection, and the thumbprint of who answers now."""
    context = ssl.create_default_context()
    if section.ca_file:
        try:
            context = ssl.create_default_context(cafile=str(section.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise BadCertificate(
                f"[vcenter] ca_file = {section.ca_file}: cannot be used ({error}); give a PEM file"
            ) from None
    if section.certificate == "any" or section.thumbprint:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    found = _handshake(section, context)
    thumbprint = hashlib.sha256(found).hexdigest()
    if section.thumbprint:
        if thumbprint != section.thumbprint:
            raise BadCertificate(
                f"[vcenter] thumbprint = {section.thumbprint}: whoever answers at {section.host}:"
                f"{section.port} has {thumbprint}; if its certificate was renewed, set that one"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.load_verify_locations(cadata=ssl.DER_cert_to_PEM_cert(found))
    return context, thumbprint


def _handshake(section: VcenterSection, context: ssl.SSLContext) -> bytes:
    try:
        with (
            socket.create_connection((section.host, section.port), CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=section.host) as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""
    except ssl.SSLCertVerificationError as error:
        raise BadCertificate(_bad(section, error.verify_message)) from None
    except (OSError, ValueError) as error:
        raise Unreachable(
            f"vCenter {section.host}:{section.port} does not answer ({error}); see [vcenter] host "
            "and port"
        ) from None


def _bad(section: VcenterSection, why: str) -> str:
    return (
        f"vCenter {section.host}:{section.port} shows a certificate that does not check ({why}); "
        "set [vcenter] ca_file, or thumbprint (`sluice vsphere connect --show-thumbprint`)"
    )
