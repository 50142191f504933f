# SPDX-License-Identifier: Apache-2.0
r"""Import the numbers by which CUPTI calls the functions of CUDA ("callback ids").

A developer runs this once per CUDA version, over the headers of the wheel nvidia-cuda-cupti:

    python native/codegen/import_cupti.py --include DIR --out native/api/imported/cuda13

It writes cupti_calls.json: names and numbers, a fact a line; no line of a header is copied.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

HEADERS = {"driver": "cupti_driver_cbid.h", "runtime": "cupti_runtime_cbid.h"}
OUT = ("INVALID", "SIZE", "FORCE_INT")


def read_calls(header: Path, library: str) -> dict[str, int]:
    """The enumerators of one header, without their prefix: `cudaMalloc_v3020` to 20."""
    prefix = f"CUPTI_{library.upper()}_TRACE_CBID_"
    found = re.findall(rf"\b{prefix}(\w+)\s*=\s*(\d+)", header.read_text())
    return {name: int(number) for name, number in found if name not in OUT}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--include", type=Path, required=True, help="folder of CUPTI's headers")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the file to")
    options = parser.parse_args(arguments)
    rows = []
    for library, name in HEADERS.items():
        header = options.include / name
        if not header.exists():
            print(f"import_cupti: {header} is missing; unpack nvidia-cuda-cupti", file=sys.stderr)
            return 1
        calls = read_calls(header, library)
        if not calls:
            print(f"import_cupti: {header} names no callback id", file=sys.stderr)
            return 1
        rows += [json.dumps([library, call, number]) for call, number in calls.items()]
    (options.out / "cupti_calls.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
