# SPDX-License-Identifier: Apache-2.0
"""A ResNet-50 training over TCP whose connections break ten times, for three seconds each.

    python3 tests/gpu/breaks.py [--steps 440] [--breaks 10] [--seconds 3]

Trains natively, through Sluice, and through Sluice over a network that breaks between steps: all
connections are cut and new ones refused. `breaks_same_losses` is the part of the losses that are
the same, bit for bit, as of the training without breaks; the native ones are compared, too. Exit
status 1 where one is not. Without a GPU or PyTorch it says that it was skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "dev"), str(HERE.parent / "harness")]
sys.path[:0] = [str(HERE.parents[1] / "python")]

from breaking_network import BreakingNetwork  # noqa: E402
from measurements import Run, write_measured  # noqa: E402
from run import Server, find_driver, native_environment  # noqa: E402
from run_workloads import torch_version  # noqa: E402

DATA_PORT, HTTP_PORT, ADDRESS = 19200, 19127, "127.0.0.9"
BATCH = 32


def train_here(steps: int) -> None:
    """Prints each step's loss as soon as it is known, with all its bits."""
    import torch
    import torchvision

    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(5)
    model = torchvision.models.resnet50(weights=None).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(BATCH, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (BATCH,), device="cuda")
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        print(loss.item().hex(), flush=True)


def trained(
    environment: dict[str, str],
    steps: int,
    network: BreakingNetwork | None = None,
    breaks: int = 0,
    seconds: float = 0,
) -> list[str]:
    """The losses of a process; its network breaks after every so many steps, `breaks` times."""
    command = [sys.executable, str(HERE / "breaks.py"), "--here", "--steps", str(steps)]
    began, losses, done = time.monotonic(), list[str](), 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            losses.append(line.strip())
            if network and done < breaks and len(losses) % (steps // (breaks + 1)) == 0:
                done += 1
                network.refuse()
                network.cut()
                time.sleep(seconds)
                network.refuse(False)
    if process.returncode or len(losses) != steps or done < breaks:
        raise SystemExit(
            f"the training ended with {process.returncode} after {len(losses)} steps and {done} "
            "breaks"
        )
    print(f"{steps} steps in {time.monotonic() - began:.0f} s, {done} breaks", flush=True)
    return losses


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--here", action="store_true", help="train in this process")
    parser.add_argument("--steps", type=int, default=440)
    parser.add_argument("--breaks", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0, help="that each lasts")
    options = parser.parse_args()
    if options.here:
        train_here(options.steps)
        return 0
    driver = find_driver()
    if not driver or importlib.util.find_spec("torchvision") is None:
        print("skipped: this machine shows no NVIDIA GPU, or has no PyTorch")
        return 0
    with tempfile.TemporaryDirectory(prefix="sluice-breaks-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        ways = ["--data-port", str(DATA_PORT), "--way", f"{HTTP_PORT}={ADDRESS}"]
        server = Server(driver, folder, options=ways)
        try:
            ours = server.preloading("tcp", HTTP_PORT)
            native = trained(native_environment(), options.steps)
            with BreakingNetwork(DATA_PORT, ADDRESS) as network:
                whole = trained(ours, options.steps)
                broken = trained(ours, options.steps, network, options.breaks, options.seconds)
                cut = len(network.connections)
        finally:
            server.close()
    same = sum(a == b for a, b in zip(whole, broken, strict=True)) / options.steps
    natively = sum(a == b for a, b in zip(native, whole, strict=True))
    print(f"the same losses: {same:.4f} of them; as natively: {natively} of {options.steps}")
    print(f"connections that there were: {cut}")
    run = Run("python3 tests/gpu/breaks.py", gpu=True, rounds=1, software=torch_version())
    kept = [
        run.record("breaks_same_losses", same, "ratio", channel="tcp", limit=1.0, better="higher")
    ]
    print(f"figures: {write_measured('breaks', kept)}")
    return 0 if same == 1 and natively == options.steps else 1


if __name__ == "__main__":
    sys.exit(main())
