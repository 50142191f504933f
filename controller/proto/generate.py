# SPDX-License-Identifier: Apache-2.0
"""Generates the package sluice.rpc from the .proto files beside this script and the kubelet's.

Called by dev/python_layout.py for a checkout and by CMakeLists.txt here for a wheel. It owns
<out>/sluice/rpc and writes it only when a .proto file is newer, or other grpcio-tools wrote it:
what they generate asks for libraries of their age. grpcio-tools carries its own protoc, so nothing
is fetched. Type stubs are written where mypy-protobuf is installed.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import tempfile
from pathlib import Path

PROTO_FOLDER = Path(__file__).resolve().parent
#: The kubelet's, which Kubernetes publishes as files and not as a package of Python.
KUBELET_FOLDER = PROTO_FOLDER.parent.parent / "kubernetes" / "proto"


def generate(out: Path) -> None:
    """Writes <out>/sluice/rpc/*_pb2.py, *_pb2_grpc.py and, where possible, *.pyi."""
    package = out / "sluice" / "rpc"
    sources = [*sorted(PROTO_FOLDER.glob("*.proto")), *sorted(KUBELET_FOLDER.glob("*.proto"))]
    newest = max(path.stat().st_mtime for path in [*sources, Path(__file__)])
    stamp = package / ".generated"
    tools = tools_version()
    fresh = stamp.exists() and stamp.stat().st_mtime >= newest
    if fresh and tools in ("", stamp.read_text()):
        return
    if not tools:
        raise SystemExit(
            f"{sys.executable} has no grpcio-tools, which generates the gRPC code; "
            "install it with: pip install grpcio-tools"
        )
    from grpc_tools import protoc

    plugins = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as scratch:
        # protoc names modules by the file's path, so the sources sit in sluice/rpc for the run
        inputs = Path(scratch) / "sluice" / "rpc"
        inputs.mkdir(parents=True)
        for source in sources:
            shutil.copy(source, inputs)
        arguments = ["protoc", f"-I{scratch}", f"--python_out={out}", f"--grpc_python_out={out}"]
        for kind in ("mypy", "mypy_grpc"):
            plugin = plugins / f"protoc-gen-{kind}"
            if plugin.exists():
                arguments += [f"--plugin={plugin}", f"--{kind}_out={out}"]
        package.mkdir(parents=True, exist_ok=True)
        status = protoc.main(arguments + [str(inputs / source.name) for source in sources])
    if status != 0:
        raise SystemExit(f"protoc ended with status {status} for {PROTO_FOLDER}/*.proto")
    (package / "__init__.py").write_text(
        '"""Generated from controller/proto and kubernetes/proto; never edit."""\n'
    )
    (package / "py.typed").write_text("")
    stamp.write_text(tools)


def tools_version() -> str:
    """The version of grpcio-tools; "" where this Python has none."""
    try:
        return importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    generate(Path(sys.argv[1]).resolve())
