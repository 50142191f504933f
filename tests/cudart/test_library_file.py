# SPDX-License-Identifier: Apache-2.0
"""The library file: NVIDIA's names under NVIDIA's version, and nothing that it must not need."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

ROOT = Path(__file__).resolve().parents[2]
VENDORS = {
    12: ROOT / "build" / "cuda12" / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12",
    13: ROOT / "build" / "cuda13" / "nvidia" / "cu13" / "lib" / "libcudart.so.13",
}
Runtime = tuple[int, Path]


def dynamic_symbols(path: Path) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Exported names with their version node, and undefined ones with their binding."""
    defined, undefined = {}, []
    with path.open("rb") as file:
        elf = ELFFile(file)
        indexes = elf.get_section_by_name(".gnu.version")
        definitions = elf.get_section_by_name(".gnu.version_d")
        symbols = elf.get_section_by_name(".dynsym")
        assert isinstance(indexes, GNUVerSymSection)
        assert isinstance(definitions, GNUVerDefSection)
        assert isinstance(symbols, SymbolTableSection)
        nodes = {}
        for node, names in definitions.iter_versions():
            nodes[node["vd_ndx"]] = next(iter(names)).name
        for index, symbol in enumerate(symbols.iter_symbols()):
            if not symbol.name:
                continue
            if symbol["st_shndx"] == "SHN_UNDEF":
                undefined.append((symbol.name, symbol["st_info"]["bind"]))
            elif symbol["st_shndx"] != "SHN_ABS":
                version = indexes.get_symbol(index)["ndx"]
                number = version if isinstance(version, int) else 1
                defined[symbol.name] = nodes.get(number & 0x7FFF, "")
    return defined, undefined


def dynamic_tags(path: Path, tag: str) -> list[str]:
    with path.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        names = {"DT_NEEDED": "needed", "DT_SONAME": "soname"}
        return [getattr(entry, names.get(tag, "entry")) for entry in dynamic.iter_tags(tag)]


def test_every_name_is_under_the_version_node(runtime: Runtime) -> None:
    major, library = runtime
    defined, _ = dynamic_symbols(library)
    assert defined
    node = f"libcudart.so.{major}"
    assert {name for name, found in defined.items() if found != node} == set()


def test_exports_are_the_vendor_s_but_for_graphics(runtime: Runtime) -> None:
    major, library = runtime
    if not VENDORS[major].exists():
        pytest.skip(f"NVIDIA's libcudart is not unpacked in build/cuda{major}")
    ours, _ = dynamic_symbols(library)
    theirs, _ = dynamic_symbols(VENDORS[major])
    left_out = yaml.safe_load((ROOT / "native" / "api" / "runtime.yaml").read_text())["left_out"]
    missing = {name for name in theirs.keys() - ours.keys() if not name.startswith(tuple(left_out))}
    assert missing == set()
    assert ours.keys() - theirs.keys() == set()


def test_its_name_and_needs(runtime: Runtime) -> None:
    major, cudart = runtime
    assert dynamic_tags(cudart, "DT_SONAME") == [f"libcudart.so.{major}"]
    needed = dynamic_tags(cudart, "DT_NEEDED")
    assert "libcuda.so.1" in needed
    assert "libstdc++.so.6" not in needed
    assert dynamic_tags(cudart, "DT_RPATH") + dynamic_tags(cudart, "DT_RUNPATH") == []


def test_every_driver_function_may_be_missing(runtime: Runtime) -> None:
    _, cudart = runtime
    _, undefined = dynamic_symbols(cudart)
    drivers = [(name, binding) for name, binding in undefined if name.startswith("cu")]
    assert len(drivers) > 100
    assert [name for name, binding in drivers if binding != "STB_WEAK"] == []


def test_a_launch_costs_little(
    cudart: Path, fake_driver: Path, generated: Path, tmp_path: Path
) -> None:
    program = tmp_path / "launch_cost"
    source = Path(__file__).resolve().parent / "launch_cost.cc"
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", f"-I{generated}"]
    subprocess.run(["g++", *flags, "-o", program, source, cudart, fake_driver], check=True)
    path = f"{fake_driver.parent}:{cudart.parent}"
    result = subprocess.run(
        [program], env={"LD_LIBRARY_PATH": path}, capture_output=True, text=True, check=True
    )
    direct, by_symbol, by_stub = map(float, result.stdout.split())
    print(f"driver {direct} ns, by symbol +{by_symbol} ns, by nvcc's stub +{by_stub} ns")
    # a walk over the table, or a few system calls, would be more on any machine
    assert by_symbol < 500
    assert by_stub < 500
