# SPDX-License-Identifier: Apache-2.0
"""Trainings of PyTorch, and what libraries keep, told when to go on; suspension.py runs it."""

from __future__ import annotations

import ctypes
import json
import sys
import zlib
from typing import Any

WIDE_LAYERS = 4
SQUARE = 256
"""Rows and columns of the matrix that is multiplied, and transformed, each time."""
DEFAULT_GENERATOR = 100  # CURAND_RNG_PSEUDO_DEFAULT


class Training:
    """Convolutions or linear layers, dropout, SGD with momentum; the same seed each time."""

    def resnet50(self, batch: int = 32) -> dict[str, Any]:
        """A new ResNet-50 of torchvision."""
        import torch
        import torchvision

        self._seed(torch)
        self._take(torchvision.models.resnet50(weights=None))
        self._inputs = torch.randn(batch, 3, 224, 224, device="cuda")
        self._labels = torch.randint(0, 1000, (batch,), device="cuda")
        return {}

    def _seed(self, torch: Any) -> None:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.manual_seed(7)
        self._torch = torch

    def _take(self, model: Any) -> None:
        self._model = model.cuda()
        parameters = self._model.parameters()
        self._optimizer = self._torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    def begin(self, batch: int = 64, wide: int = 0) -> dict[str, Any]:
        """A new model: convolutions, or linear layers of `wide`.

        Of the first a step is the program's (2 ms, most of them Python's), of the second the GPU's.
        """
        import torch

        self._seed(torch)
        layers = (
            [torch.nn.Linear(wide, wide) for _ in range(WIDE_LAYERS)]
            if wide
            else [
                torch.nn.Unflatten(1, (3, 32, 32)),
                torch.nn.Conv2d(3, 32, 3, padding=1),
                torch.nn.ReLU(),
                torch.nn.Conv2d(32, 32, 3, padding=1),
                torch.nn.ReLU(),
                torch.nn.Flatten(),
            ]
        )
        last = torch.nn.Linear(wide or 32 * 32 * 32, 10)
        self._take(torch.nn.Sequential(*layers, torch.nn.Dropout(0.3), last))
        self._inputs = torch.randn(batch, wide or 3 * 32 * 32, device="cuda")
        self._labels = torch.randint(0, 10, (batch,), device="cuda")
        return {}

    def ballast(self, gib: int) -> dict[str, Any]:
        """So much more memory, in pieces of 1 GiB, each full of its number."""
        full, kind = self._torch.full, self._torch.int32
        self._ballast = [full((1 << 28,), n, dtype=kind, device="cuda") for n in range(gib)]
        return {}

    def weigh(self, gib: int) -> dict[str, Any]:
        """How many of its words are not what they were."""
        pieces = self._ballast[:gib]
        return {"wrong": sum(int((piece != n).sum()) for n, piece in enumerate(pieces))}

    def generator(self) -> dict[str, Any]:
        """A new generator of cuRAND's, of the same seed each time."""
        import torch

        self._torch = torch
        torch.zeros(1, device="cuda")
        self._curand = ctypes.CDLL("libcurand.so.10")
        self._generator = ctypes.c_void_p()
        self._right(
            self._curand.curandCreateGenerator(ctypes.byref(self._generator), DEFAULT_GENERATOR),
            self._curand.curandSetPseudoRandomGeneratorSeed(self._generator, ctypes.c_uint64(7)),
        )
        return {}

    def numbers(self) -> dict[str, Any]:
        """The next numbers, their product and their transform: checksums of all bytes.

        The generator's state, cuBLAS' handle and cuFFT's plan are of the calls before.
        """
        made = self._torch.empty((SQUARE, SQUARE), device="cuda")
        at, count = ctypes.c_void_p(made.data_ptr()), ctypes.c_size_t(made.numel())
        self._right(self._curand.curandGenerateUniform(self._generator, at, count))
        results = [made, made @ made, self._torch.fft.rfft2(made)]
        self._torch.cuda.synchronize()
        return {"sums": [_checksum(result) for result in results]}

    @staticmethod
    def _right(*statuses: int) -> None:
        for status in statuses:
            if status:
                raise SystemExit(f"cuRAND: status {status}")

    def train(self, steps: int) -> dict[str, Any]:
        """So many steps; the loss of each."""
        losses = []
        for _ in range(steps):
            self._optimizer.zero_grad()
            made = self._model(self._inputs)
            loss = self._torch.nn.functional.cross_entropy(made, self._labels)
            loss.backward()
            self._optimizer.step()
            losses.append(loss.item())
        return {"losses": losses}


def _checksum(tensor: Any) -> int:
    return zlib.crc32(bytes(tensor.cpu().untyped_storage().tolist()))


def main() -> None:
    """Until the input ends."""
    training = Training()
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(getattr(training, asked.pop("do"))(**asked)), flush=True)


if __name__ == "__main__":
    main()
