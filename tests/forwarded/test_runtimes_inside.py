# SPDX-License-Identifier: Apache-2.0
"""Programs with a CUDA runtime inside, of both majors: relinked with ours, or NVIDIA's diverted.

They are compiled once for each major, and linked with each archive. test_diverted.py has what is
particular about diverting. Sessions are on the software GPU, over shared memory and TCP.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runtimes_inside import archives, build_inside, prints_as_natively, sluice_run
from static_pool import StaticPool

NAMES = {
    "vector_add": "10000",
    "streams_events": "8192",
    "symbols": "",
    "graphs": "",
    "pools": "",
    "other_streams": "",
    "managed": "",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NAME-MAJOR-WAY of all of them."""
    return build_inside(tmp_path_factory.mktemp("inside"), NAMES, archives())


@pytest.fixture(scope="module", params=["shm", "tcp"])
def pool(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[StaticPool]:
    with StaticPool(tmp_path_factory.mktemp("pool"), tcp=request.param == "tcp") as started:
        yield started


@pytest.mark.parametrize("way", ["relinked", "diverted"])
@pytest.mark.parametrize("major", [12, 13])
@pytest.mark.parametrize("name", NAMES)
def test_prints_what_it_prints_natively(
    pool: StaticPool, built: Path, name: str, major: int, way: str
) -> None:
    sessions = pool.sessions()
    setting = "divert" if way == "diverted" else "leave"
    program = (built / f"{name}-{major}-{way}", *NAMES[name].split())
    done = sluice_run(pool, "--static-runtime", setting, *program)
    prints_as_natively(name, done)
    assert pool.sessions() == sessions + 1
    assert f"for CUDA {'12.9' if major == 12 else '13.0'}" in pool.log.read_text()
