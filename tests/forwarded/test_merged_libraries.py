# SPDX-License-Identifier: Apache-2.0
"""Products between kernels, with and without merged launches: the same, bit for bit.

What stands in for cuBLAS and cuBLASLt on the node computes something else for every number and
address that a call, its handle and its descriptors were told (programs/fake_products.c).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from folders import let_everybody_in
from merged_runs import Left, figures_of, run_program
from product_programs import build_product_programs, make_products
from static_pool import StaticPool

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
CHANNELS = pytest.mark.parametrize("tcp", [False, True], ids=["shared memory", "TCP"])
SENT_OF = re.compile(r"(\d+) asynchronous commands of (cublas\w+)")
IN_PIECES = {
    "cublasLtMatmul",
    "cublasLtMatmulDescSetAttribute",
    "cublasSgemm_v2",
    "cublasSetMathMode",
}


@pytest.fixture(scope="session")
def programs() -> Path:
    return build_product_programs()


@pytest.fixture(scope="module")
def libraries() -> Iterator[Path]:
    """Where every account finds them."""
    with tempfile.TemporaryDirectory() as folder:
        let_everybody_in(Path(folder))
        yield make_products(Path(folder) / "libraries")


@CHANNELS
@pytest.mark.parametrize("seed", range(1, 7))
def test_products_are_the_same_bit_for_bit(
    tmp_path: Path, programs: Path, libraries: Path, seed: int, tcp: bool
) -> None:
    command = [programs / "library_repeats", str(seed)]
    with StaticPool(tmp_path, tcp=tcp, libraries=libraries) as pool:
        plain = run_program(pool, command, "off")
        forced = run_program(pool, command, "force")
    assert forced.stdout == plain.stdout
    figures = figures_of(forced.stderr)
    assert figures.replayed > 0
    # What tells descriptors and handles their numbers is in pieces, so it ends none.
    sent = {name: int(count) for count, name in SENT_OF.findall(forced.stderr)}
    assert sent["cublasLtMatmulDescSetAttribute"] > 0
    others = sum(count for name, count in sent.items() if name not in IN_PIECES)
    assert figures.left[Left.LIBRARY] == others


@CHANNELS
@pytest.mark.parametrize("seed", [11, 12])
def test_threads_with_streams_and_objects_of_their_own(
    tmp_path: Path, programs: Path, libraries: Path, seed: int, tcp: bool
) -> None:
    command = [programs / "library_repeats", str(seed), "3", "6"]
    with StaticPool(tmp_path, tcp=tcp, libraries=libraries) as pool:
        plain = run_program(pool, command, "off")
        for _ in range(3):
            assert run_program(pool, command, "force").stdout == plain.stdout
            assert run_program(pool, command, "auto").stdout == plain.stdout


@CHANNELS
@pytest.mark.parametrize("bad", [0, 5, 7])
def test_a_fault_is_said_at_the_same_calls(
    tmp_path: Path, programs: Path, libraries: Path, bad: int, tcp: bool
) -> None:
    command = [programs / "repeated_fault", str(bad)]
    with StaticPool(tmp_path, tcp=tcp, libraries=libraries) as pool:
        plain = run_program(pool, command, "off")
        forced = run_program(pool, command, "force")
    assert "cudaErrorIllegalAddress" in plain.stdout
    assert forced.stdout == plain.stdout


def test_what_the_client_says_of_it_adds_up(
    tmp_path: Path, programs: Path, libraries: Path
) -> None:
    command = [programs / "library_repeats", "3"]
    with StaticPool(tmp_path, libraries=libraries) as pool:
        forced = run_program(pool, command, "force")
        plain = run_program(pool, command, "off")
    figures = figures_of(forced.stderr)
    assert figures.graphs > 0
    assert set(figures.left) == set(Left)
    assert figures.replayed + sum(figures.left.values()) == figures.commands
    assert figures.left[Left.ANSWERED] >= figures.round_trips - 1
    assert "merged into" not in plain.stderr
