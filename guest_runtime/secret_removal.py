# SPDX-License-Identifier: Apache-2.0
"""Takes secrets out of text before it leaves the machine: by what they are, and by how they look.

Used by bundle_file.py, through which everything of a support bundle passes. Two ways, as each has
gaps: secrets that stand in files and variables here are looked for literally wherever they are, and
what looks like one (private keys, tokens, passwords behind their names, URLs with a user) goes
whether it is known or not. It errs towards taking out too much.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from .ini_lines import quoted, read_lines

LEFT_OUT = "(left out)"
#: Shorter ones would take words out of every line.
SHORTEST = 5
#: Shorter ones are looked for as they are, in URLs and in JSON only, and not as hex and base64.
SHORTEST_ENCODED = 8
MOST_SECRET_BYTES = 1 << 16
#: What names of keys, variables and fields have in them that hold a secret.
SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?|pwd?$|secret|token|credential|api[_-]?key|private|(\b|[_-])key$|auth"
    r"|cookie|nonce|webhook|otp$|(^|_)(job|pin)$",
    re.IGNORECASE,
)
#: … and those that hold a path, a number or a yes.
HARMLESS_NAME = re.compile(
    r"_(file|dir|path|seconds|minutes|hours|id|ids|user|users|name|names)$", re.IGNORECASE
)

_NAMES = (
    r"pass(?:word|wd|phrase)?|pwd?|secret|token|credentials?|api[_-]?key|private[_-]?key"
    r"|(?:\b|[_-])key|SLUICE_JOB|nonce|[_-]auth|otp|\bpin|webhook(?:_url)?|sluice_console"
)
_VALUE = r"""("[^"\n]*"?|'[^'\n]*'?|[^\s,;&|"'(){}\[\]]+)"""
_EQUALS = r"""["']?[ \t]{0,4}(?:=>?|:(?!//))[ \t]{0,4}"""
#: What of a URL's query may be a secret.
_QUERY = r"sig|signature|code|auth|access_key|ticket|jwt|id_token"
#: Addresses of which a part is the key.
_HOOKS = r"""https?://(?:hooks?\.[^\s/"']{1,100}|[^\s/"']{1,100}/(?:api/)?(?:web)?hooks?)/"""
#: What a sentence says a password is: in quotes, or of letters and digits.
_TOLD = r""""[^"\n]*"|'[^'\n]*'|(?=\S{0,60}\d)(?=\S{0,60}[a-z])[^\s/]{6,}"""
_HEADERS = r"(?:Proxy-)?Authorization|X-Auth-Token|X-Subject-Token|(?:Set-)?Cookie"
_PATTERNS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        # a private key, also one whose end is missing
        (
            r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)",
            LEFT_OUT,
        ),
        # tokens and one-time secrets; names of metrics and units are small letters only
        (r"\bsluice_(?=[a-z_]*[A-Z0-9-])[A-Za-z0-9_-]{12,}", f"sluice_{LEFT_OUT}"),
        # JSON Web Tokens
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", LEFT_OUT),
        (r"(?i)\b(Bearer|Basic|Digest|Negotiate)[ \t]+[A-Za-z0-9._~+/=-]{6,}", rf"\1 {LEFT_OUT}"),
        (rf"""(?i)\b({_HEADERS})("?'?[ \t]*[:=][ \t]*).*""", rf"\1\2{LEFT_OUT}"),
        # a password may have slashes and more of these signs: a path with one behind it goes, too
        (
            r"""(?i)(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@:"']{0,100}:[^\s"'<>]{1,300}@""",
            rf"\1{LEFT_OUT}@",
        ),
        (r"""(?i)(\b[a-z][a-z0-9+.-]{1,20}://)[^/\s@"']{1,300}@""", rf"\1{LEFT_OUT}@"),
        (
            rf"""(?i)(\b[\w.-]{{0,60}}?(?:{_NAMES})s?(?![\w-]){_EQUALS}){_VALUE}""",
            rf"\1{LEFT_OUT}",
        ),
        (rf"""(?i)([?&#;](?:{_QUERY})=)[^\s&"'#]+""", rf"\1{LEFT_OUT}"),
        # addresses that let whoever knows them in
        (
            rf"""(?i)({_HOOKS})[^\s"'<>]+""",
            rf"\1{LEFT_OUT}",
        ),
        # in command lines, markup and sentences
        (rf"(?i)(--[\w-]{{0,40}}?(?:{_NAMES})[ \t]+){_VALUE}", rf"\1{LEFT_OUT}"),
        (r"(?i)((?:^|\s)(?:-u|--user)[ \t=]+[^\s:]{1,100}:)\S+", rf"\1{LEFT_OUT}"),
        (rf"(?i)(<(?:[\w.-]{{0,40}})(?:{_NAMES})>)[^<\n]*", rf"\1{LEFT_OUT}"),
        (
            rf"(?i)\b(pass(?:word|wd|phrase)|secret)([ \t]+(?:is[ \t]+)?)({_TOLD})",
            rf"\1\2{LEFT_OUT}",
        ),
        # crypt(3)
        (r"\$(?:1|2[aby]|5|6|7|y|gy)\$[./A-Za-z0-9$=,]{8,}", LEFT_OUT),
    )
)

#: What may be a key, or a part of one whose beginning is missing.
_RUN = re.compile(r"[A-Za-z0-9_+/-]{40,}={0,2}")


def secret_name(name: str) -> bool:
    """Whether a key, variable or field of this name may hold a secret."""
    return bool(SECRET_NAME.search(name)) and not HARMLESS_NAME.search(name)


class SecretRemoval:
    """The secrets of one machine, and how many were taken out."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.removed = 0

    def know(self, secrets: Iterable[str]) -> None:
        """Values that shall be nowhere, as they are and as URLs, JSON, hex and base64 have them."""
        for secret in secrets:
            plain = secret.strip()
            forms = [plain, quote(plain, safe=""), json.dumps(plain)[1:-1]]
            if len(plain) >= SHORTEST_ENCODED:
                data = plain.encode("utf-8", "surrogateescape")
                forms += [
                    data.hex(),
                    data.hex().upper(),
                    base64.b64encode(data).decode().rstrip("="),
                ]
                forms.append(base64.urlsafe_b64encode(data).decode().rstrip("="))
            self._known.update(form for form in forms if len(form) >= SHORTEST)
        longest_first = sorted(self._known, key=len, reverse=True)
        text = "|".join(map(re.escape, longest_first))
        self._pattern = re.compile(text) if text else None

    def know_file(self, path: Path) -> bool:
        """What stands in a file of secrets; False if it cannot be read, or is too large for one."""
        try:
            with path.open("rb") as file:
                data = file.read(MOST_SECRET_BYTES + 1)
        except OSError:
            return False
        if len(data) > MOST_SECRET_BYTES:
            return False
        text = data.decode("utf-8", "replace")
        found = []
        for line in text.splitlines():
            if line.startswith("-----"):
                continue
            found.append(line)
            name, _, value = line.partition("=")
            if value and re.fullmatch(r"[\w .-]{1,60}", name):  # `password = …`
                found.append(value.strip().strip("\"'"))
        self.know(found)
        return True

    def clean(self, text: str) -> str:
        """The text without secrets."""
        if self._pattern is not None:
            text, count = self._pattern.subn(LEFT_OUT, text)
            self.removed += count
        for pattern, instead in _PATTERNS:
            text, count = pattern.subn(instead, text)
            self.removed += count
        return _RUN.sub(self._without_random, text)

    def _without_random(self, run: re.Match[str]) -> str:
        """What somebody drew at random, by its mixture of signs: names and paths have none such."""
        if not _is_random(run[0]):
            return run[0]
        self.removed += 1
        return LEFT_OUT


def _is_random(text: str) -> bool:
    """Few separators and some of every kind, or capitals that come and go as in no name."""
    kinds = ("[0-9]", "[a-z]", "[A-Z]")
    fewest = min(len(re.findall(kind, text)) for kind in kinds)
    if fewest >= 3 and 10 * len(re.findall("[-_+/]", text)) <= len(text):
        return True
    changes = len(re.findall("[a-z](?=[A-Z])|[A-Z](?=[a-z])", text))
    return fewest >= 1 and 100 * changes >= 15 * len(text)


def settings_without_secrets(text: str, known: Iterable[str] | None = None) -> str:
    """An INI file's sections and keys without comments, and without values that may be secret.

    `known` are the keys, as section.key, that Sluice has; the value of any other is left out, since
    a secret may stand behind a mistyped name.
    """
    good = None if known is None else frozenset(known)
    lines = []
    for line in read_lines(text):
        if line.unknown:
            lines.append(f"; line {line.number}: neither a section nor a key {LEFT_OUT}")
        elif not line.key:
            lines.append(f"[{line.section}]")
        elif secret_name(line.key):
            lines.append(f"{line.key} = {LEFT_OUT}")
        elif good is not None and f"{line.section}.{line.key}" not in good:
            lines.append(f"{line.key} = {LEFT_OUT} ; no key of Sluice's")
        else:
            lines.append(f"{line.key} = {quoted(line.value)}")
    return "\n".join(lines) + "\n"
