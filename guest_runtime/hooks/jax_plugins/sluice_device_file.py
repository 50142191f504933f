# SPDX-License-Identifier: Apache-2.0
"""Has JAX ask CUDA for GPUs on a machine that has none of NVIDIA's device files.

`sluice run` puts this folder behind PYTHONPATH where there is none (device_file.py); JAX imports
every module of `jax_plugins` and calls what it finds here before it decides.
"""

from __future__ import annotations

import importlib
import os


def initialize() -> None:
    """A file that there always is counts as a GPU's; does nothing where JAX looks for none."""
    known = importlib.import_module("jax._src.hardware_utils")
    files = getattr(known, "_NVIDIA_GPU_DEVICES", None)
    if isinstance(files, list):
        files.append(os.devnull)
