# SPDX-License-Identifier: Apache-2.0
"""A small training of PyTorch that is told when to go on; checkpoint_sessions.py runs it."""

from __future__ import annotations

import json
import sys
from typing import Any

WIDE_LAYERS = 4


class Training:
    """Convolutions or linear layers, dropout, SGD with momentum; the same seed each time."""

    def begin(self, batch: int = 64, wide: int = 0) -> dict[str, Any]:
        """A new model: convolutions, or linear layers of `wide`.

        Of the first a step is the program's (2 ms, most of them Python's), of the second the GPU's.
        """
        import torch

        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.manual_seed(7)
        self._torch = torch
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
        self._model = torch.nn.Sequential(*layers, torch.nn.Dropout(0.3), last).cuda()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
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


def main() -> None:
    """Until the input ends."""
    training = Training()
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(getattr(training, asked.pop("do"))(**asked)), flush=True)


if __name__ == "__main__":
    main()
