# SPDX-License-Identifier: Apache-2.0
"""Writes the bill of materials of a release, CycloneDX 1.6 as JSON.

Run by release.py with the Python of its tools, which has cyclonedx-python-lib. It names what the
host's packages bring: the Python packages of the lock, as their own metadata describes them; what
lies in the tree as others made it (the console's scripts, with the versions in their names); and
zig's C++ runtime, which is linked into the native part. The same release gives the same bytes. What
it writes is checked against the schema of CycloneDX.
"""

from __future__ import annotations

import argparse
import datetime
import email
import hashlib
import json
import re
import sys
import uuid
import zipfile
from collections.abc import Iterable
from email.message import Message
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

CHECKOUT = Path(__file__).resolve().parent.parent
VENDOR = CHECKOUT / "console" / "static" / "vendor"
#: What lies in VENDOR: beginning of the file's name → package of the npm registry, licence.
VENDORED = {
    "htmx-ext-sse": ("htmx-ext-sse", "0BSD"),
    "htmx": ("htmx.org", "0BSD"),
    "uplot": ("uplot", "MIT"),
}
OURS = "Apache-2.0"
ZIG_RUNTIME = "Apache-2.0 WITH LLVM-exception"
CLASSIFIER = "License :: OSI Approved :: "
#: What metadata calls a licence, where that is not SPDX's name of it.
KNOWN = {
    "MIT License": "MIT",
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "ISC License": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


def components(wheels: Iterable[Path], zig: str) -> list[Component]:
    """What is in a release besides its own code."""
    found: dict[tuple[str, str], Component] = {}
    for wheel in sorted(wheels):
        made = of_wheel(wheel)
        known = found.setdefault((made.name, made.version or ""), made)
        known.hashes.update(made.hashes)
    return [*found.values(), *vendored(), of_zig(zig)]


def of_wheel(wheel: Path) -> Component:
    """A Python package, as its own metadata says it."""
    metadata = metadata_of(wheel)
    name = re.sub("[-_.]+", "-", metadata["Name"]).lower()
    return Component(
        name=name,
        version=metadata["Version"],
        type=ComponentType.LIBRARY,
        scope=ComponentScope.REQUIRED,
        purl=PackageURL("pypi", None, name, metadata["Version"]),
        bom_ref=f"pypi:{name}@{metadata['Version']}",
        licenses=[LicenseFactory().make_from_string(licence_of(metadata))],
        hashes=[hash_of(wheel.read_bytes())],
    )


def metadata_of(wheel: Path) -> Message:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)]
        return email.message_from_bytes(archive.read(name))


def licence_of(metadata: Message) -> str:
    """The licence that a package says it has; ends the program where it says none."""
    if expression := metadata["License-Expression"]:
        return str(expression)
    named = str(metadata["License"] or "").strip().removeprefix(CLASSIFIER)
    if named and "\n" not in named and len(named) < 60:
        return KNOWN.get(named, named)
    classifiers = metadata.get_all("Classifier", [])
    said = [each.removeprefix(CLASSIFIER) for each in classifiers if each.startswith(CLASSIFIER)]
    if not said:
        sys.exit(f"sbom: {metadata['Name']} {metadata['Version']} names no licence: look, and say")
    return " AND ".join(KNOWN.get(each, each) for each in said)


def vendored() -> list[Component]:
    """The scripts of the console that others wrote, by SHA256SUMS."""
    made = []
    for line in (VENDOR / "SHA256SUMS").read_text().splitlines():
        digest, _, file = line.partition("  ")
        found = re.fullmatch(r"(.+)-([0-9]+\.[0-9.]*[0-9])\.min\.(js|css)", file)
        if found is None or found[1] not in VENDORED:
            sys.exit(
                f"sbom: {VENDOR.name}/{file}: of which package? VENDORED in sbom.py has to say"
            )
        name, licence = VENDORED[found[1]]
        made.append(
            Component(
                name=name,
                version=found[2],
                type=ComponentType.LIBRARY,
                purl=PackageURL("npm", None, name, found[2], None, file),
                bom_ref=f"npm:{name}@{found[2]}#{file}",
                licenses=[LicenseFactory().make_from_string(licence)],
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
            )
        )
    return made


def of_zig(version: str) -> Component:
    """libc++, libc++abi and libunwind of LLVM, as zig links them into libraries and programs."""
    return Component(
        name="llvm-runtimes",
        version=f"zig-{version}",
        type=ComponentType.LIBRARY,
        description="libc++, libc++abi, libunwind and compiler-rt, linked statically",
        purl=PackageURL("pypi", None, "ziglang", version),
        bom_ref=f"zig:{version}",
        licenses=[LicenseFactory().make_from_string(ZIG_RUNTIME)],
    )


def hash_of(content: bytes) -> HashType:
    """Its SHA-256."""
    return HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(content).hexdigest())


def bill(version: str, commit: str, moment: int, parts: list[Component]) -> str:
    """The document."""
    own = Component(
        name="sluice",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref="sluice",
        licenses=[LicenseFactory().make_from_string(OURS)],
    )
    bom = Bom(components=parts)
    bom.metadata.component = own
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, f"sluice {version} {commit}")
    bom.register_dependency(own, parts)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    # sets have no order of their own
    ordered = json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"
    if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(ordered):
        sys.exit(f"sbom: is not CycloneDX 1.6: {wrong}")
    return ordered


def main() -> None:
    """Writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path, nargs="+")
    parser.add_argument("--version", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--moment", type=int, required=True)
    parser.add_argument("--zig", required=True, help="its version")
    parser.add_argument("--into", type=Path, required=True)
    arguments = parser.parse_args()
    parts = components(arguments.wheels, arguments.zig)
    text = bill(arguments.version, arguments.commit, arguments.moment, parts)
    arguments.into.write_text(text)
    print(f"{arguments.into}: {len(parts)} components")


if __name__ == "__main__":
    main()
