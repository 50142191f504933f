# SPDX-License-Identifier: Apache-2.0
"""Which of our libraries the loader hook takes when a program asks for a name.

Used by program_check.py and python_check.py. The hook decides (native/client/audit/audit.cc); this
is the same table for `sluice check`, and a test holds the two together. What a folder of ours does
not hold passes unchanged: nothing here names a release's libraries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

_OURS = re.compile(r"(?!libsluice-)(?P<stem>lib[^/]*?)\.so\.(?P<version>[0-9][0-9.]*)")
_VERSION = re.compile(r"(\.[0-9][0-9.]*)?")
#: What auditwheel puts into the name of a library that it copies into a wheel.
_HASH = "(?:[-.][0-9a-f]{8})?"
#: A library whose parts have names of their own, all of which one library of ours serves.
_DIVIDED = "libcudnn"

#: The driver's libraries are also there under the driver's version: libcuda.so.580.65.06.
_DRIVER = ".so.1"

#: Compilers and marks for profilers: they need no GPU and stay NVIDIA's.
LOCAL = re.compile(r"lib(nvrtc|nvJitLink|nvvm|nvptxcompiler|nvfatbin|nvToolsExt|nvtx\w*)\b.*")
#: What else of NVIDIA's works on a GPU, as far as names tell.
CUDA = re.compile(
    r"lib(cuda|cudart|cublas(Lt)?|cudnn\w*|cufft\w*|cufile\w*|cupti|curand|cusolver\w*|cusparse\w*"
    r"|cutensor\w*|cudss\w*|cvcuda|nccl|npp\w*|nvblas|nvidia-ml|nvjpeg\w*|nvshmem\w*|nvcv_types)([-.][0-9a-f]{8})?\.so\b.*"
)


@dataclass(frozen=True)
class Served:
    """The libraries of one folder, by the name that each carries."""

    names: dict[str, Path] = field(default_factory=dict)

    def replacement(self, asked: str, before: str = "") -> Path | None:
        """The library that is taken when a program asks for `asked`, a name or a path.

        `before`: one that was taken earlier and is there in several versions, by its name.
        """
        wanted = asked.rsplit("/", 1)[-1]
        for name, path in self.names.items():
            match = _OURS.fullmatch(name)
            assert match is not None
            stem, suffix = match["stem"], name[match.end("stem") :]
            if wanted == f"{stem}.so":
                return self._without_version(asked, stem, before)
            if re.fullmatch(
                rf"{re.escape(stem)}{_HASH}{re.escape(suffix)}{_VERSION.pattern}", wanted
            ):
                return path
            if suffix == _DRIVER and re.fullmatch(
                rf"{re.escape(stem)}\.so{_VERSION.pattern}", wanted
            ):
                return path
            if stem == _DIVIDED and re.fullmatch(
                rf"{_DIVIDED}_.*?{re.escape(suffix)}{_VERSION.pattern}", wanted
            ):
                return path
        return None

    def _without_version(self, asked: str, stem: str, before: str) -> Path:
        """The one that a name without a version means: see the hook's table."""
        versions = self._versions(stem)
        if "/" in asked and len(versions) > 1:
            file = Path(asked).resolve().name
            exact = self.replacement(file) if file != f"{stem}.so" else None
            if exact is not None and exact.name in versions:
                return exact
        earlier = self._versions(before.partition(".so")[0])
        age = earlier.index(before) if before in earlier and len(earlier) > 1 else 0
        return self.names[versions[age] if age < len(versions) else versions[0]]

    def _versions(self, stem: str) -> list[str]:
        """The names of a library, the newest first."""
        found = [name for name in self.names if name.partition(".so")[0] == stem]
        return sorted(found, key=lambda name: -int(name.rpartition(".so.")[2].split(".")[0]))

    def cuda_version(self, name: str) -> str:
        """The major version of CUDA that one of these libraries is of, "" where it is of all."""
        versions = self._versions(name.partition(".so")[0])
        runtimes = self._versions("libcudart")
        if name not in versions or len(versions) < 2 or len(versions) > len(runtimes):
            return ""
        return runtimes[versions.index(name)].rpartition(".so.")[2]

    def other_version(self, asked: str) -> str | None:
        """The library of ours that `asked` is another major version of, or several with "and"."""
        if self.replacement(asked) is not None:
            return None
        stem = asked.rsplit("/", 1)[-1].partition(".so")[0]
        return " and ".join(self._versions(stem)) or None


def served_by(folder: Path | None) -> Served:
    """What the hook in `folder` would serve."""
    if folder is None or not folder.is_dir():
        return Served()
    return Served(
        {path.name: path for path in sorted(folder.iterdir()) if _OURS.fullmatch(path.name)}
    )
