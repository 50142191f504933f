# SPDX-License-Identifier: Apache-2.0
"""Every pointer and size that reaches one of NVIDIA's libraries was proved by somebody.

The classes are in native/codegen/proofs.py; tests/native/roundtrip/library_proofs_test.cc holds the
worker to them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from imported import RegistryError
from libraries import Library, load_libraries, unproved
from model import API
from proofs import PROOFS, proof_of


@pytest.fixture(scope="module")
def loaded() -> list[Library]:
    """Every library of the registry."""
    return load_libraries(API)


def test_nothing_reaches_a_library_unproved(loaded: list[Library]) -> None:
    """Each parameter of a table has a class, and each command by hand says one of its pointers."""
    assert unproved(loaded) == []


def changed(tmp_path: Path, library: str, change: dict[str, object]) -> list[Library]:
    """The registry with some keys of one library's file changed."""
    shutil.copytree(API, tmp_path / "api")
    path = tmp_path / "api" / "libraries" / f"{library}.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    return load_libraries(tmp_path / "api")


def test_a_pointer_that_no_rule_names_is_found(tmp_path: Path) -> None:
    """What would be taken for device memory by default is nobody's."""
    rules = yaml.safe_load((API / "libraries" / "curand.yaml").read_text())["params"]
    rest = [rule for rule in rules if rule.get("name") != "outputPtr"]
    found = unproved(changed(tmp_path, "curand", {"params": rest}))
    assert "curand: curandGenerate: outputPtr (address)" in found


def test_a_command_by_hand_that_says_nothing_is_found(tmp_path: Path) -> None:
    """A command without a table says by words what a table says by kinds."""
    found = unproved(
        changed(tmp_path, "nccl", {"commands": {"sluiceNcclGroup": {"class": "either"}}})
    )
    assert found == ["nccl: sluiceNcclGroup (written by hand)"]


def test_an_attribute_of_a_newer_header_must_be_classed(tmp_path: Path) -> None:
    """An enumerator of which nothing is said may be a pointer."""
    rules = yaml.safe_load((API / "libraries" / "cusparse.yaml").read_text())["params"]
    for rule in rules:
        rule.get("values", {}).pop("CUSPARSE_SPMAT_DIAG_TYPE", None)
    with pytest.raises(RegistryError, match="nothing is said of CUSPARSE_SPMAT_DIAG_TYPE"):
        changed(tmp_path, "cusparse", {"params": rules})


def test_a_workspace_asks_for_its_size(loaded: list[Library]) -> None:
    """Host workspaces are as large as the library on the node says."""
    asked = {f.name: f.workspace for lib in loaded for f in lib.functions if f.workspace}
    with_workspace = {
        f.name
        for lib in loaded
        for f in lib.functions
        for p in f.params
        if p.kind == "host_workspace"
    }
    assert asked.keys() == with_workspace
    assert len(asked) == 13
    assert all(w and w.query == f"{name}_bufferSize" for name, w in asked.items())


def test_the_sparse_solvers_indices_are_read(loaded: list[Library]) -> None:
    """Whatever cuSOLVER's sparse functions take as index arrays is checked before the call."""
    unread = [
        f"{f.name}: {p.name}"
        for lib in loaded
        if lib.name == "cusolver"
        for f in lib.functions
        for p in f.params
        if p.name.startswith(("csrRowPtr", "csrColInd")) and p.proof != "indices"
    ]
    assert unread == []


def test_kinds_and_classes_agree() -> None:
    """A pointer that nobody named has no class; all that are given are known ones."""
    assert proof_of("address", said=False, counted=False, opaque=False, asked=False) == ""
    assert proof_of("host_workspace", said=True, counted=True, opaque=False, asked=False) == ""
    assert proof_of("in", said=True, counted=True, opaque=True, asked=False) == "opaque"
    for kind in ("value", "handle", "stream", "event", "mint", "scalar", "result", "string"):
        assert proof_of(kind, said=True, counted=False, opaque=False, asked=False) in PROOFS
