# SPDX-License-Identifier: Apache-2.0
"""How much later a pod with a claim has its first CUDA result than the same pod without has begun.

    python tests/bench/pod_start.py [--rounds 10]

Needs what `make test-kubernetes` needs (root; the rig's programs in build/kubernetes, the guest
bundle) and starts all of it: a real cluster of one node, the pool with the software GPU. A round
runs one pod of each kind, in turn the one first and the other, from before `kubectl apply` until
the first line of its log, by the container runtime's clock: with a claim the program's that has
added two vectors on its vGPU, without one the shell's. A pod, and what it held, is gone before the
next one is asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from figure import Figure, Run, publish  # noqa: E402

from tests.kubernetes.cluster_pool import ClusterPool, container, pod, template  # noqa: E402
from tests.rigs.kubernetes.rig import KubernetesRig  # noqa: E402

LIMIT_SECONDS = 2.0
WITH, WITHOUT = "with", "without"
#: Go's time has nine digits of a second, Python's six.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6})\d*(\S+) (.*)")


@contextlib.contextmanager
def running_cluster() -> Iterator[ClusterPool]:
    """A cluster with a pool beside it."""
    with tempfile.TemporaryDirectory() as folder:
        archive = ROOT / "dist" / "sluice-guest-x86_64.tar.gz"
        command = ["tar", "xzf", str(archive), "-C", folder, "--strip-components=1"]
        subprocess.run(command, check=True)
        rig = KubernetesRig()
        rig.up()
        try:
            ClusterPool.load_images(rig, ROOT / "build" / "programs", Path(folder))
            for name in ("namespaces.yaml", "rbac.yaml", "classes.yaml"):
                rig.kubectl("apply", "-f", str(ROOT / "kubernetes" / "manifests" / name))
            pool = ClusterPool(rig, Path(folder))
            try:
                pool.start()
                pool.apply(template("small", "500Mi", "10"))
                yield pool
            finally:
                pool.close()
        finally:
            rig.down()


def seconds_of(pool: ClusterPool, kind: str) -> float:
    """From the request until the pod's first line."""
    if kind == WITH:
        wanted = pod("timed", container("cuda", "/bin/vector_add"), claim_template="small")
        line = "wrong 0"
    else:
        wanted = pod("timed", container("cuda", "/bin/sh", "-c", "echo began", claim=""))
        line = "began"
    begun = time.time()
    pool.apply(wanted)
    pool.finished("timed")
    log = pool.rig.kubectl("logs", "timed", "--timestamps")
    found = _STAMP.match(log)
    if not found or line not in found[3]:
        raise RuntimeError(f"the pod said {log!r}")
    ended = datetime.fromisoformat(found[1] + found[2].replace("Z", "+00:00")).timestamp()
    pool.rig.kubectl("delete", "pod", "timed", "--timeout=120s")
    deadline = time.monotonic() + 60
    while pool.parts_of_reservation() and time.monotonic() < deadline:
        time.sleep(0.05)
    return ended - begun


def measure(rounds: int) -> list[Figure]:
    """The figures, on a cluster that is started for them."""
    took: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    with running_cluster() as pool:
        for kind in (WITH, WITHOUT):  # everything is read from disk once
            seconds_of(pool, kind)
        for number in range(rounds):
            for kind in (WITH, WITHOUT)[:: 1 if number % 2 else -1]:
                took[kind].append(seconds_of(pool, kind))
    extra = [with_it - without for with_it, without in zip(*took.values(), strict=True)]
    without = "the same pod without a claim, until its shell's first line"
    return [
        Figure(
            "pod_first_result_s",
            median(took[WITH]),
            "s",
            median(took[WITHOUT]),
            without,
            better="lower",
            rounds=rounds,
        ),
        Figure(
            "pod_first_result_extra_s",
            median(extra),
            "s",
            limit=LIMIT_SECONDS,
            better="lower",
            spread=(min(extra), max(extra)),
            rounds=rounds,
        ),
    ]


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="What a claim adds to a pod's start.")
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    run = Run("python tests/bench/pod_start.py", rounds=rounds)
    publish("pod_start", measure(rounds), run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
