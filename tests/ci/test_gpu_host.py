# SPDX-License-Identifier: Apache-2.0
"""What dev/pack_gpu_host.py packs has what a server with static grants imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

from dev.pack_gpu_host import needed

ROOT = Path(__file__).resolve().parents[2]
#: Imported where they are there, and not missed: gRPC's compiler, and what .pth files bring.
OPTIONAL = {"coverage", "grpcio-tools", "setuptools"}
CODE = """
import json, sys
import static_server, yaml
print(json.dumps([n for n, m in sys.modules.items() if "site-packages" in str(m)]))
"""


def test_every_package_that_the_server_imports_is_packed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={"PYTHONPATH": str(ROOT / "tests" / "harness")},
        capture_output=True,
        text=True,
        check=True,
    )
    modules = {name.partition(".")[0] for name in json.loads(done.stdout)}
    owners = packages_distributions()
    imported = {re.sub("[-_.]+", "-", o.lower()) for m in modules for o in owners.get(m, ())}
    assert "grpcio" in imported
    # google is a folder of several packages, of which protobuf alone is imported
    unpacked = {
        name for name in imported - OPTIONAL - needed("3.12").keys() if "google" not in name
    }
    assert not unpacked, f"add to the project's dependencies: {sorted(unpacked)}"
