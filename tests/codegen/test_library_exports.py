# SPDX-License-Identifier: Apache-2.0
"""The forwarding libraries export what NVIDIA's export, under the same version nodes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = ROOT / "native" / "api" / "imported" / "libraries"
BUILT = ROOT / "build" / "native" / "lib"
RULES = sorted(p.stem for p in (ROOT / "native" / "api" / "libraries").glob("*.yaml"))


def symbols(library: Path) -> set[tuple[str, str]]:
    """Every defined dynamic symbol with its version node."""
    text = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    found = set()
    for line in text.splitlines():
        kind, symbol = line.split()[-2:]
        name, _, node = symbol.partition("@@")
        if kind != "A":
            found.add((name, node))
    return found


@pytest.mark.parametrize("name", RULES)
def test_same_names_and_nodes(name: str) -> None:
    """Neither more nor fewer, and the SONAME that applications ask for."""
    facts = json.loads((IMPORTED / f"{name}.json").read_text())
    library = BUILT / facts["soname"]
    if not library.exists():
        pytest.skip(f"{library.name} is not built: make native")
    assert symbols(library) == {(row["name"], row["node"]) for row in facts["exports"]}
    dynamic = subprocess.run(
        ["readelf", "-d", str(library)], capture_output=True, text=True, check=True
    ).stdout
    assert f"Library soname: [{facts['soname']}]" in dynamic


OLDER = json.loads((IMPORTED.parent / "cuda12" / "libraries.json").read_text())


@pytest.mark.parametrize("row", OLDER, ids=lambda row: row["soname"])
def test_cuda_12_s_have_its_names_and_nodes(row: dict[str, Any]) -> None:
    """What the newest has but for what came later, and what only CUDA 12 declares."""
    library = BUILT / row["soname"]
    if not library.exists():
        pytest.skip(f"{library.name} is not built: make native")
    newest = json.loads((IMPORTED / f"{row['library']}.json").read_text())
    names = {export["name"] for export in newest["exports"]} - set(row["lacks"])
    names |= {function["name"] for function in row["functions"]}
    assert symbols(library) == {(name, row["node"]) for name in names}
    dynamic = subprocess.run(
        ["readelf", "-d", str(library)], capture_output=True, text=True, check=True
    ).stdout
    assert f"Library soname: [{row['soname']}]" in dynamic


def test_wheels_of_cuda_12_find_every_symbol_under_its_version() -> None:
    """What PyTorch 2.9 (cu128) and ONNX Runtime 1.23 import of the libraries named for CUDA 12."""
    listed = (ROOT / "tests" / "codegen" / "cuda12_wheel_symbols.txt").read_text()
    wanted: dict[str, set[str]] = {}
    for line in listed.splitlines():
        node, name = line.split()
        wanted.setdefault(node, set()).add(name)
    assert set(wanted) == {"libcudart.so.12", *(row["node"] for row in OLDER)}
    for node, names in wanted.items():
        library = BUILT / node
        if not library.exists():
            pytest.skip(f"{library.name} is not built: make native")
        assert {(name, node) for name in names} - symbols(library) == set()


def test_pytorch_finds_every_symbol() -> None:
    """Every symbol of the forwarded libraries that PyTorch 2.11 imports is exported."""
    wanted = (ROOT / "tests" / "codegen" / "pytorch_2_11_symbols.txt").read_text().split()
    have: set[str] = set()
    for path in IMPORTED.glob("*.json"):
        have |= {row["name"] for row in json.loads(path.read_text())["exports"]}
    prefixes = ("cublas", "cudnn", "cufft", "curand", "cusolver", "cusparse", "nccl")
    missing = [
        w
        for w in wanted
        if w.startswith(prefixes) and not w.startswith("cusparseLt") and w not in have
    ]
    assert not missing
