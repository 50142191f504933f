# SPDX-License-Identifier: Apache-2.0
"""`sluice check` says who wins where NVIDIA's driver is installed beside Sluice."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.guest_runtime.installation import Installation
from sluice.guest_runtime.installation_check import check_loader

FOLDER = Path("/opt/sluice/lib")
OURS = "\tlibcuda.so.1 (libc6,x86-64) => /opt/sluice/lib/libcuda.so.1\n"
THEIRS = "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n"
OTHER = "\tlibcudart.so.13 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.13\n"


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        ("", None),
        (OURS + OTHER, None),
        (OTHER + THEIRS, "programs without `sluice run` use that"),
        (THEIRS + OURS, "programs without `sluice run` use that"),
        (OURS + THEIRS, "use the pool all the same"),
    ],
)
def test_it_speaks_only_where_there_are_two(cache: str, said: str | None) -> None:
    found = check_loader(Installation(FOLDER, None, None, None, None), cache)
    if said is None:
        assert found == []
    else:
        assert said in found[0].text
        assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in found[0].text
        wanted = "off" if "all the same" in said else "on"
        assert found[0].text.endswith(f"/opt/sluice/libexec/sluice-loader {wanted}")


def test_nothing_is_said_where_sluice_is_not() -> None:
    assert check_loader(Installation(None, None, None, None, None), THEIRS) == []
