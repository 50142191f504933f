# SPDX-License-Identifier: Apache-2.0
"""What NVML says of the GPU, natively and through Sluice.

    python tests/gpu/nvml_figures.py [--channels shm tcp]

Starts a server of its own, as `make test-gpu` does. What does not change must be the same on both
sides; what does (power, temperature, clocks, utilization) must be there on both sides or on none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from run import Server, find_driver

PROGRAM = r"""
import ctypes, json
n = ctypes.CDLL("libnvidia-ml.so.1")
u32, u64, ref = ctypes.c_uint, ctypes.c_ulonglong, ctypes.byref
assert n.nvmlInit_v2() == 0
h = ctypes.c_void_p()
assert n.nvmlDeviceGetHandleByIndex_v2(0, ref(h)) == 0
said = {}
def ask(name, kind, *before):
    to = kind()
    status = getattr(n, "nvmlDeviceGet" + name)(h, *before, ref(to))
    said[" ".join([name, *map(str, before)])] = to.value if status == 0 else f"error {status}"
def two(name):
    a, b = u32(), u32()
    status = getattr(n, "nvmlDeviceGet" + name)(h, ref(a), ref(b))
    said[name] = [a.value, b.value] if status == 0 else f"error {status}"
both = (u32 * 2)()
status = n.nvmlDeviceGetUtilizationRates(h, both)
said["UtilizationRates"] = list(both) if status == 0 else f"error {status}"
ask("Temperature", u32, 0)
for which in range(4):
    ask("TemperatureThreshold", u32, which)
for name in ("PowerUsage", "EnforcedPowerLimit", "PowerManagementLimit", "FanSpeed", "NumFans",
             "PowerManagementDefaultLimit", "PowerManagementMode", "PerformanceState",
             "CurrPcieLinkGeneration", "MaxPcieLinkGeneration", "GpuMaxPcieLinkGeneration",
             "CurrPcieLinkWidth", "MaxPcieLinkWidth", "PcieReplayCounter", "PersistenceMode"):
    ask(name, u32)
two("PowerManagementLimitConstraints")
two("EncoderUtilization")
two("DecoderUtilization")
ask("TotalEnergyConsumption", u64)
ask("CurrentClocksThrottleReasons", u64)
ask("SupportedClocksThrottleReasons", u64)
for name in ("ClockInfo", "MaxClockInfo", "ApplicationsClock", "DefaultApplicationsClock"):
    for which in range(4):
        ask(name, u32, which)
print(json.dumps(said))
"""

CHANGING = (
    "UtilizationRates",
    "Temperature 0",
    "PowerUsage",
    "TotalEnergyConsumption",
    "CurrentClocksThrottleReasons",
    "PerformanceState",
    "EncoderUtilization",
    "DecoderUtilization",
    "CurrPcieLinkGeneration",
    "FanSpeed",
)


def asked(environment: dict[str, str]) -> dict[str, object]:
    """What a process with this environment is told."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    said: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return said


def fits(name: str, native: object, ours: object) -> bool:
    """Whether the two may stand beside one another."""
    if name in CHANGING or name.startswith("ClockInfo"):
        return isinstance(native, str) == isinstance(ours, str)
    return native == ours


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="NVML's figures, natively and through Sluice.")
    parser.add_argument("--channels", nargs="*", default=["shm", "tcp"])
    options = parser.parse_args()
    driver = find_driver()
    if not driver:
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as folder:
        Path(folder).chmod(0o755)
        server = Server(driver, Path(folder))
        try:
            native = asked({})
            for channel in options.channels:
                time.sleep(1)
                ours = asked(server.environments[channel])
                print(f"{'figure (' + channel + ')':42} {'native':>22} {'ours':>22}")
                for name, value in native.items():
                    good = fits(name, value, ours[name])
                    passed, failed = passed + good, failed + (not good)
                    mark = "" if good else "  DIFFERENT"
                    print(f"{name:42} {value!s:>22} {ours[name]!s:>22}{mark}")
        finally:
            server.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
