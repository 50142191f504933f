# SPDX-License-Identifier: Apache-2.0
"""How the driver's cache of compiled PTX behaves, without Sluice: docs/decisions/0013.

    python3 tests/gpu/compile_cache_probe.py    # as root

Each case is a process of its own that loads one large piece of PTX; what it took says whether the
driver found it compiled. One line a case; nothing is measured but that.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NOBODY = 65534
INSTRUCTIONS = 12000


def ptx(seed: int) -> bytes:
    """A kernel that takes about a second to compile."""
    lines = [
        ".version 7.0",
        ".target sm_70",
        ".address_size 64",
        f".visible .entry probe_{seed}(.param .u64 out) {{",
        ".reg .u64 %p; .reg .f32 %f<64>;",
        "ld.param.u64 %p, [out];",
    ]
    lines += [f"ld.global.f32 %f{i}, [%p+{4 * i}];" for i in range(64)]
    for i in range(INSTRUCTIONS):
        a, b = (i * 7 + seed) % 64, (i * 13 + 5) % 64
        lines.append(f"fma.rn.f32 %f{i % 64}, %f{a}, %f{b}, 0f3F{(i * 40503) % 0x7FFFFF:06X};")
    lines += [f"st.global.f32 [%p+{4 * i}], %f{i};" for i in range(64)]
    return "\n".join([*lines, "ret; }"]).encode() + b"\0"


class Driver:
    """The few calls that this needs."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check("cuDeviceGet", ctypes.byref(device), 0)
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.check("cuCtxSetCurrent", context)

    def check(self, name: str, *arguments: object) -> None:
        status = getattr(self.cuda, name)(*arguments)
        if status:
            raise SystemExit(f"{name}: {status}")

    def load(self, seed: int) -> float:
        """Milliseconds."""
        image, module = ptx(seed), ctypes.c_void_p()
        begun = time.perf_counter()
        self.check("cuModuleLoadData", ctypes.byref(module), image)
        return 1e3 * (time.perf_counter() - begun)


def child(options: argparse.Namespace) -> None:
    """One process: cuInit, what the case does then, and loads."""
    driver = Driver()
    if options.filled_from:
        shutil.copytree(options.filled_from, os.environ["CUDA_CACHE_PATH"], dirs_exist_ok=True)
        for place in (
            Path(os.environ["CUDA_CACHE_PATH"]),
            *Path(os.environ["CUDA_CACHE_PATH"]).rglob("*"),
        ):
            os.chown(place, options.uid or 0, options.uid or 0)
    if options.linked_to:
        Path(os.environ["CUDA_CACHE_PATH"]).symlink_to(options.linked_to)
    if options.set_path:
        libc = ctypes.CDLL(None)
        libc.setenv(b"CUDA_CACHE_PATH", options.set_path.encode(), 1)
    if options.uid:
        os.setgroups([])
        os.setgid(options.uid)
        os.setuid(options.uid)
    print(" ".join(f"{driver.load(seed):.0f}" for seed in options.seeds))


def run(title: str, path: Path | None, seeds: list[int], **options: object) -> None:
    """A case: its line."""
    command = [sys.executable, __file__, "--child", "--seeds", *map(str, seeds)]
    for name, value in options.items():
        if name != "environment":
            command += [f"--{name.replace('_', '-')}", str(value)]
    environment = dict(os.environ) | dict(options.get("environment") or {})
    if path is not None:
        environment["CUDA_CACHE_PATH"] = str(path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout.strip() or done.stderr.strip()[-200:]
    kept = sorted(f for f in path.rglob("*") if f.is_file()) if path and path.exists() else []
    print(
        f"{title:64}{said:>24} ms   {len(kept)} files, {sum(f.stat().st_size for f in kept)} bytes",
        flush=True,
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--filled-from")
    parser.add_argument("--linked-to")
    parser.add_argument("--set-path")
    parser.add_argument("--uid", type=int, default=0)
    options = parser.parse_args()
    if options.child:
        child(options)
        return 0
    with tempfile.TemporaryDirectory(prefix="sluice-cache-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        filled = folder / "filled"
        run("empty", filled, [1, 2])
        for f in sorted(filled.rglob("*")):
            print(
                "   ",
                f.relative_to(filled),
                oct(f.stat().st_mode),
                f.stat().st_size,
                f.read_bytes()[:48].hex() if f.is_file() else "",
            )
        run("filled", filled, [1, 2])
        run("off", None, [1], environment={"CUDA_CACHE_DISABLE": "1"})
        late = folder / "late"
        late.mkdir()
        run("filled after cuInit", late, [1, 2], filled_from=filled)
        absent = folder / "absent"
        run("filled after cuInit, a folder that was not there", absent, [1, 2], filled_from=filled)
        user = folder / "user"
        user.mkdir()
        run(
            "filled after cuInit, then another user",
            user,
            [1, 2, 3],
            filled_from=filled,
            uid=NOBODY,
        )
        run("a link made after cuInit", folder / "link", [1, 2], linked_to=filled)
        run("the variable set after cuInit", folder / "nothing", [1, 2], set_path=filled)
        shutil.copytree(filled, folder / "read")
        run("root's files, another user", folder / "read", [1, 2, 3], uid=NOBODY)
        (folder / "closed").mkdir(mode=0o700)
        run("a folder that the user may not read", folder / "closed", [1], uid=NOBODY)
        without = folder / "without"
        shutil.copytree(filled, without)
        (without / "index").unlink(missing_ok=True)
        run("without its index", without, [1, 2])
        damaged = folder / "damaged"
        shutil.copytree(filled, damaged)
        for f in damaged.rglob("*"):
            if f.is_file() and f.name != "index":
                data = bytearray(f.read_bytes())
                data[len(data) // 2] ^= 0xFF
                f.write_bytes(data)
        run("a byte of each file turned over", damaged, [1, 2])
        cut = folder / "cut"
        shutil.copytree(filled, cut)
        for f in cut.rglob("*"):
            if f.is_file():
                f.write_bytes(f.read_bytes()[: f.stat().st_size // 2])
        run("all files cut in half", cut, [1, 2])
        junk = folder / "junk"
        shutil.copytree(filled, junk)
        (junk / "index").write_bytes(os.urandom(1 << 16))
        run("an index of random bytes", junk, [1, 2])
        small = folder / "small"
        run("at most 100 KB", small, [1, 2, 3, 4], environment={"CUDA_CACHE_MAXSIZE": "100000"})
        merged = folder / "merged"
        run("another cache", merged, [3, 4])
        for f in filled.rglob("*"):
            if f.is_file() and f.name != "index":
                place = merged / f.relative_to(filled)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(f, place)
        run("that one with another's files added, its index as it was", merged, [1, 2, 3, 4])
        twice = folder / "twice"
        both = [
            subprocess.Popen(
                [sys.executable, __file__, "--child", "--seeds", *map(str, range(10, 18))],
                env={**os.environ, "CUDA_CACHE_PATH": str(twice)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for process in both:
            print("two at once:", process.communicate()[0].strip())
        run("what two at once left", twice, list(range(10, 18)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
