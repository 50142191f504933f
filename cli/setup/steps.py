# SPDX-License-Identifier: Apache-2.0
"""What `sluice init` has to do on a host, found by looking, and done.

Used by init_command.py. `plan` reads and decides, and `Plan.carry_out` writes. A run that was cut
off is finished by the next one: each thing is looked for in its place, and what is there is kept.
"""

from __future__ import annotations

import datetime
import difflib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from pydantic import BaseModel

from sluice.cli import certificates
from sluice.cli.rest import CommandError, Controller, Credentials
from sluice.cli.setup import host
from sluice.cli.setup.accounts import (
    FIRST_TOKENS,
    NODE_TOKEN,
    Account,
    accounts_of,
    first_tokens,
)
from sluice.cli.setup.answers import FILE, Answers, recorded, settled
from sluice.cli.setup.ini_editing import Wanted, with_keys
from sluice.cli.setup.join_file import JoinFile
from sluice.cli.setup.pool_files import (
    Places,
    controller_addresses,
    controller_keys,
    server_keys,
)
from sluice.config.controller import ControllerSection, read_controller_config
from sluice.config.ini import ConfigError
from sluice.config.server import read_server_config
from sluice.guest_runtime.ini_lines import read_lines
from sluice.resources.first_tokens import hash_of

DAYS = 825
RENEWED_BEFORE = datetime.timedelta(days=30)
ENROLMENT = "sluice_enrol_"


@dataclass(frozen=True)
class FileChange:
    """A file that is to say something else; `before` is None where there is none."""

    path: Path
    before: str | None
    after: str
    mode: int = 0o644

    @property
    def replaces_settings(self) -> bool:
        """Whether a setting that was there changes or goes; new ones beside it ask nobody."""
        after = _settings(self.after)
        return any(after.get(place) != value for place, value in _settings(self.before).items())

    def diff(self) -> str:
        """As `diff -u` shows it."""
        before = (self.before or "").splitlines(keepends=True)
        after = self.after.splitlines(keepends=True)
        name = str(self.path)
        return "".join(difflib.unified_diff(before, after, name, f"{name} (new)"))


@dataclass
class Plan:
    """What is to be done, in this order."""

    places: Places
    answers: Answers
    os_accounts: list[str] = field(default_factory=list)
    makes_ca: bool = False
    certificates: list[tuple[certificates.Kind, Path]] = field(default_factory=list)
    joins: JoinFile | None = None
    accounts: list[Account] = field(default_factory=list)
    by_controller: list[Account] = field(default_factory=list)
    files: list[FileChange] = field(default_factory=list)

    def lines(self) -> list[str]:
        """What will be done, a line each."""
        said = [f"account    {name}, of the services" for name in self.os_accounts]
        if self.makes_ca:
            said.append(f"CA         {self.places.authority}/ca.crt and ca.key")
        for kind, path in self.certificates:
            renewed = " (renewed; the one before is kept as .old)" if path.exists() else ""
            said.append(f"{kind:<10} {path} and its key{renewed}")
        if self.joins:
            said.append(f"join       {', '.join(self.joins.controllers)} as {self.joins.node}")
        said += [f"token      {a.file} ({a.role})" for a in self.accounts + self.by_controller]
        for change in self.files:
            said.append(f"{'write' if change.before is None else 'change':<10} {change.path}")
        return said

    @property
    def replaces(self) -> list[str]:
        """What would be otherwise than somebody left it: shown, and asked about."""
        asked = any(change.replaces_settings for change in self.files)
        shown = [change.diff() for change in self.files if asked and change.before is not None]
        shown += [
            f"{path}: does not fit, or ends within {RENEWED_BEFORE.days} days: issued anew\n"
            for _, path in self.certificates
            if path.exists()
        ]
        if self.joins and (self.places.folder / NODE_TOKEN).exists():
            shown.append(f"{self.places.folder / NODE_TOKEN}: replaced by joining anew\n")
        return shown

    def changes(self, path: Path) -> bool:
        """Whether a service with this file has to be restarted."""
        return any(change.path == path for change in self.files) or bool(self.certificates)

    def carry_out(self) -> None:
        """Does it all. Raises CommandError."""
        for name in self.os_accounts:
            host.add_account(name)
        _private_folder(self.places.folder / "accounts")
        self._make_certificates()
        if self.joins:
            self._join(self.joins)
        if self.accounts:
            text, secrets = first_tokens(self.places.folder, self.accounts)
            host.write(self.places.folder / FIRST_TOKENS, text, 0o644)
            for path, secret in secrets.items():
                host.write(path, f"{secret}\n", 0o600)
        for account in self.by_controller:
            secret = self._controller().post("/tokens", account.words())["secret"]
            host.write(account.file, f"{secret}\n", 0o600)
        for change in self.files:
            host.write(change.path, change.after, change.mode)

    def _make_certificates(self) -> None:
        places, answers = self.places, self.answers
        try:
            if self.makes_ca:
                certificates.make_ca(places.authority)
            for kind, path in self.certificates:
                for old in (path, path.with_suffix(".key")):
                    if old.exists():
                        old.rename(old.with_name(f"{old.name}.old"))
                certificates.issue(
                    places.authority, path.parent, places.node, kind, [answers.address], DAYS
                )
        except (OSError, certificates.CertificateError) as error:
            raise CommandError(str(error)) from None
        if answers.tls and answers.runs_controller:
            host.give_to_controller([places.controller_pair[1]])

    def _join(self, joins: JoinFile) -> None:
        """Puts what came with the join file in its places, and changes its secret for a token."""
        places = self.places
        if joins.ca:
            host.write(places.joined_ca, joins.ca, 0o644)
        if joins.certificate:
            certificate, key = places.node_pair
            host.write(key, joins.key, 0o600)
            host.write(certificate, joins.certificate, 0o644)
        secret = joins.secret
        if secret.startswith(ENROLMENT):
            controller = controller_with(
                joins.controllers, places.joined_ca, secret, bool(joins.ca)
            )
            answer = controller.post("/enrol", {})
            if answer.get("node") != joins.node:
                raise CommandError(
                    f"the controller says that this is {answer.get('node')}, and the join file "
                    f"that it is {joins.node}: have `sluice invite` write another"
                )
            secret = answer["secret"]
        host.write(places.folder / NODE_TOKEN, f"{secret}\n", 0o600)

    def _controller(self) -> Controller:
        """As it runs now: with what an earlier run was told."""
        before = recorded(self.places.folder)
        return own_controller(self.places, settled({}, before) if before else self.answers)


def controller_with(addresses: Sequence[str], ca: Path, secret: str, tls: bool) -> Controller:
    """The pool's REST, asked with this secret and nothing of the environment's."""
    scheme = "https" if tls else "http"
    with tempfile.NamedTemporaryFile("w", prefix="sluice-") as file:
        file.write(secret)
        file.flush()
        credentials = Credentials(ca if tls else None, Path(file.name))
        named = ",".join(f"{scheme}://{address}" for address in addresses)
        return Controller(named, credentials=credentials)


def own_controller(places: Places, answers: Answers) -> Controller:
    """This host's controller, asked as its admin. Raises CommandError."""
    token = places.folder / "accounts" / "admin.token"
    try:
        secret = token.read_text().strip()
    except OSError as error:
        raise CommandError(
            f"{token}: cannot be read ({error.strerror}); run it as root on the controller's host"
        ) from None
    ca = places.authority / "ca.crt"
    addresses = controller_addresses(answers, places)
    return controller_with(addresses, ca, secret, answers.tls)


def places_of(folder: Path, answers: Answers) -> Places:
    """Where things are, with the ports of a controller.conf that is there. Raises ConfigError."""
    path = folder / "controller.conf"
    section = read_controller_config(path).controller if path.exists() else ControllerSection()
    return Places(folder, answers.node_name, section.rest_port, section.grpc_port)


def plan(folder: Path, answers: Answers, joins: JoinFile | None, *, as_root: bool) -> Plan:
    """What has to be done in this folder. Raises CommandError, ConfigError."""
    places = places_of(folder, answers)
    made = Plan(places, answers, os_accounts=host.missing_accounts() if as_root else [])
    if joins and hash_of(joins.secret) != _joined_with(folder):
        made.joins = joins
    if answers.tls and answers.runs_controller:
        made.makes_ca = not (places.authority / "ca.key").exists()
        wanted: list[tuple[certificates.Kind, Path]] = [("controller", places.controller_pair[0])]
        if answers.runs_server:
            wanted.append(("node", places.node_pair[0]))
        names = [answers.node_name, answers.address]
        made.certificates = [
            (kind, path)
            for kind, path in wanted
            if made.makes_ca or not _fits(path, places.authority / "ca.crt", names)
        ]
    _plan_files(made, joins)
    if answers.runs_controller:
        _plan_accounts(made)
    return made


def _plan_files(made: Plan, joins: JoinFile | None) -> None:
    places, answers = made.places, made.answers
    if answers.runs_controller:
        keys = controller_keys(answers, places)
        _plan_conf(made, places.controller_conf, keys, read_controller_config)
        ca = pair = answers.tls
    else:
        ca = bool(joins and joins.ca) or places.joined_ca.exists()
        pair = bool(joins and joins.certificate) or places.node_pair[0].exists()
    _plan_conf(
        made, places.server_conf, server_keys(answers, places, ca=ca, pair=pair), read_server_config
    )
    own, path = answers, places.folder / FILE
    before = path.read_text() if path.exists() else None
    if before != own.text():
        # the answers are ours, and differ with what is asked about already
        made.files.append(FileChange(path, before, own.text()))


def _plan_conf(
    made: Plan, path: Path, keys: Wanted, read: Callable[[Path | None], BaseModel]
) -> None:
    """A configuration file with these keys, if it has to change; it must be good then."""
    try:
        before = path.read_text() if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: cannot be read ({error})") from None
    after = with_keys(before or "", keys)
    with tempfile.TemporaryDirectory() as scratch:
        draft = Path(scratch) / path.name
        draft.write_text(after)
        try:
            read(draft)
        except ConfigError as error:
            raise CommandError(str(error).replace(str(draft), str(path)), 2) from None
    if before != after:
        made.files.append(FileChange(path, before, after))


def _plan_accounts(made: Plan) -> None:
    answers, places = made.answers, made.places
    node = answers.node_name if answers.runs_server else ""
    wanted = accounts_of(places.folder, answers.projects, node)
    missing = [account for account in wanted if not account.is_there]
    admin, *_ = wanted
    if missing and _pool_has_begun(made):
        if not admin.is_there:
            raise CommandError(
                f"{admin.file}: is missing, and the pool has begun without it: put the secret of "
                "an admin's token there (`sluice token create --role admin`)"
            )
        made.by_controller = missing
    else:
        made.accounts = missing


def _pool_has_begun(made: Plan) -> bool:
    """Whether a controller has a store already, which reads no first tokens any more."""
    path = made.places.controller_conf
    if not path.exists():
        return False
    config = read_controller_config(path)
    if config.store.kind == "etcd":
        return (made.places.folder / FIRST_TOKENS).exists()
    return config.controller.store.exists()


def _joined_with(folder: Path) -> str:
    return recorded(folder).get("joined", "")


def _fits(path: Path, ca: Path, names: Sequence[str]) -> bool:
    """Whether a certificate is there, of the CA, for these names, and good for a while."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        authority = x509.load_pem_x509_certificate(ca.read_bytes())
        certificate.verify_directly_issued_by(authority)
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except Exception:
        return False  # not there, not readable, not of this CA: issued anew
    found = {str(each.value) for each in extension.value}
    ends = certificate.not_valid_after_utc
    lasts = ends - datetime.datetime.now(datetime.UTC) > RENEWED_BEFORE
    return set(names) <= found and lasts and path.with_suffix(".key").exists()


def _settings(text: str | None) -> dict[tuple[str, str], str]:
    return {(line.section, line.key): line.value for line in read_lines(text or "") if line.key}


def _private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise CommandError(f"{folder}: cannot be made ({error.strerror}); run it as root") from None
