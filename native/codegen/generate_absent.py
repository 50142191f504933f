# SPDX-License-Identifier: Apache-2.0
"""Generates the libraries that answer that they are not available (native/client/absent).

Runs in every build, for one folder: client/absent_<stem>.inc and exports/<stem>.map of each library
in absent.yaml. What an entry leaves open is refused: every function has an answer of its type.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from generate_abi import Writer
from imported import RegistryError
from model import API

#: What the headers call types that C++ has under another name; their values are always zero here.
SPELLINGS = {"half": "uint16_t", "__nv_bfloat16": "uint16_t", "undeclared": "int"}
NUMBERS = re.compile(
    r"(unsigned |signed )?(char|short|int|long|long long)|u?int\d+_t|s?size_t|ptrdiff_t"
    r"|float|double|half|__nv_bfloat16"
)


@dataclass(frozen=True)
class AbsentFunction:
    """One exported function and what it does: `returns name() { return answer; }`."""

    name: str
    returns: str
    answer: str


@dataclass(frozen=True)
class AbsentLibrary:
    """One entry of absent.yaml with its list."""

    soname: str
    stem: str
    node: str
    offers: str
    meaning: str
    status: str
    enums: dict[str, list[tuple[str, int]]]
    functions: list[AbsentFunction]
    """Those that are generated."""
    hand: list[str]
    own: list[str]
    """Names of Sluice's own that it exports beside them."""

    @property
    def names(self) -> list[str]:
        """Everything that it exports."""
        return sorted([*self.hand, *(f.name for f in self.functions)])


def answer_of(soname: str, entry: dict[str, Any], name: str, returns: str) -> str:
    """The expression that a function returns, by its name first, then by its type."""
    if returns == "void":
        return ""
    for pattern, answer in entry["by_name"].items():
        if re.fullmatch(pattern, name):
            return str(answer)
    by_type = entry["by_type"]
    if returns in by_type:
        return str(by_type[returns])
    if "number" in by_type and NUMBERS.fullmatch(returns):
        return str(by_type["number"])
    raise RegistryError(
        f"absent.yaml: {soname}: {name} returns {returns}, for which by_type has no answer"
    )


def load_absent(api: Path = API) -> list[AbsentLibrary]:
    """Every library of absent.yaml; RegistryError where it and its list disagree."""
    result = []
    for soname, entry in yaml.safe_load((api / "absent.yaml").read_text()).items():
        path = api / "absent" / f"{soname}.json"
        if not path.exists():
            raise RegistryError(f"{path} is missing; run native/codegen/list_exports.py")
        listed = json.loads(path.read_text())
        enums = {tag: [(n, v) for n, v in values] for tag, values in listed["enums"].items()}
        known = {name for values in enums.values() for name, _ in values}
        names = {name for name, _ in listed["functions"]}
        if entry["status"] not in known or not set(entry["hand"]) <= names:
            raise RegistryError(f"absent.yaml: {soname}: its status or hand is not in {path.name}")
        functions = [
            AbsentFunction(
                name,
                SPELLINGS.get(returns or "undeclared", returns),
                answer_of(soname, entry, name, returns or "undeclared"),
            )
            for name, returns in listed["functions"]
            if name not in entry["hand"]
        ]
        result.append(
            AbsentLibrary(
                soname,
                entry["stem"],
                listed["node"],
                entry["offers"],
                entry["meaning"],
                entry["status"],
                enums,
                functions,
                entry["hand"],
                entry.get("own", []),
            )
        )
    return result


def generate(out: Path, libraries: list[AbsentLibrary]) -> None:
    """Write everything under `out`."""
    writer = Writer(out)
    for library in libraries:
        writer.render("absent_library.inc.j2", f"client/absent_{library.stem}.inc", library=library)
        writer.render(
            "exports_library.map.j2",
            f"exports/{library.stem}.map",
            library=library.soname,
            node=f"{library.node} " if library.node else "",
            names=[*library.names, *library.own],
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the generated files")
    parser.add_argument("--api", type=Path, default=API, help="folder of the registry")
    options = parser.parse_args(arguments)
    try:
        generate(options.out, load_absent(options.api))
    except RegistryError as error:
        print(f"generate_absent: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
