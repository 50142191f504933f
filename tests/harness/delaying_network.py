# SPDX-License-Identifier: Apache-2.0
"""DelayingNetwork: a way to a TCP port of this host that is as long and as wide as told.

tests/gpu/delaying_network.cc does it, which says what it imitates and what it does not.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType


class DelayingNetwork:
    """From `address`:`port` to 127.0.0.1:`port`, while the block runs.

    `delay_us`: of each direction. `gbit_s`: of each direction, all connections together; 0: as fast
    as the host is. `program`: the built delaying_network.
    """

    def __init__(
        self, program: Path, address: str, port: int, delay_us: float, gbit_s: float = 0
    ) -> None:
        self._command = [str(program), address, str(port), str(delay_us), str(gbit_s)]

    def __enter__(self) -> DelayingNetwork:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout
        if not self._process.stdout.readline():
            raise RuntimeError(f"{' '.join(self._command)}: ended with {self._process.wait()}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(10)
