# SPDX-License-Identifier: Apache-2.0
"""The registry knows what is written by hand under native/client: no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from registry import load_registry

CLIENT = Path(__file__).resolve().parents[2] / "native" / "client"
DEFINITION = re.compile(
    r"^(?:extern \"C\" )?(?:CUresult|cudaError_t|[\w ]+\**) \**((?:cu[A-Z]|cuda[A-Z]|__cuda)\w*)"
    r"\([^;{]*?\)\s*(?:noexcept\s*)?(?:try\s*)?\{",
    re.MULTILINE,
)


def defined_in(folder: Path) -> set[str]:
    """Exported functions that the C++ files of a folder define."""
    names: set[str] = set()
    for path in sorted(folder.rglob("*.cc")):
        names.update(DEFINITION.findall(path.read_text()))
    return names


def nothing(names: set[str] | frozenset[str], complaint: str) -> None:
    assert not names, f"{complaint}: {', '.join(sorted(names))}"


def test_driver_functions_by_hand_are_those_annotated_so() -> None:
    registry = load_registry()
    defined = defined_in(CLIENT / "driver") & registry.driver.functions.keys()
    if not defined:
        pytest.skip("native/client/driver defines nothing yet")
    by_hand = {n for n, f in registry.functions.items() if f.client_by_hand}
    nothing(defined - by_hand, "defined, but driver.yaml lets them be generated")
    nothing(by_hand - defined, "written by hand says driver.yaml, but defined nowhere")


def test_runtime_functions_by_hand_are_those_listed() -> None:
    registry = load_registry()
    known = registry.runtime.functions.keys() | registry.runtime_undeclared.keys()
    defined = defined_in(CLIENT / "cudart") & known
    if not defined:
        pytest.skip("native/client/cudart defines nothing yet")
    nothing(defined - registry.runtime_hand, "defined, but not in runtime.yaml's hand")
    nothing(registry.runtime_hand - defined, "in runtime.yaml's hand, but defined nowhere")


def test_functions_of_older_runtimes_by_hand_are_those_listed() -> None:
    for major in load_registry().majors:
        own = f"cudart{major.number}_"
        definition = re.compile(rf"^cudaError_t {own}(\w+)\(", re.MULTILINE)
        sources = (CLIENT / f"cudart{major.number}").glob("*.cc")
        defined = {name for path in sources for name in definition.findall(path.read_text())}
        assert defined == {f.name for f in major.hand}
