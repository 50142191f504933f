# SPDX-License-Identifier: Apache-2.0
"""XGBoost in parts, each printing what it learned: `python xgboost_parts.py NAME [DEVICE]`."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np
import xgboost as xgb

DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cuda"
ROUNDS = 20


def table(seed: int, rows: int = 20_000, columns: int = 24) -> tuple[Any, Any]:
    """Rows and what is to be learned of them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns)).astype(np.float32)
    y = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + 0.1 * rng.normal(size=rows)
    return x, y.astype(np.float32)


def trained(data: Any, **options: Any) -> Any:
    """A model; what it says of itself in each round is printed."""
    history: dict[str, Any] = {}
    said = {"device": DEVICE, "tree_method": "hist", "seed": 7, "max_depth": 6, **options}
    model = xgb.train(
        said, data, ROUNDS, evals=[(data, "train")], evals_result=history, verbose_eval=False
    )
    for metric, values in history["train"].items():
        print(metric, *(f"{value:.5f}" for value in values))
    used = json.loads(model.save_config())["learner"]["generic_param"]["device"]
    assert used.startswith(DEVICE), f"it ran on {used}"
    return model


def show(name: str, values: Any, *, exact: bool = True) -> None:
    """Shape, sum and a digest of what was predicted; without where sums have no fixed order."""
    found = np.asarray(values)
    digest = hashlib.sha256(found.tobytes()).hexdigest()[:16] if exact else ""
    wide = found.astype(np.float64)
    print(name, found.shape, f"{wide.sum():.4g} {np.abs(wide).sum():.4g}", digest)


def regression() -> None:
    """Squared errors, trained and predicted on the GPU."""
    x, y = table(1)
    model = trained(xgb.DMatrix(x, y))
    show("predicted", model.predict(xgb.DMatrix(x)))
    show("in place", model.inplace_predict(x))
    show("leaves", model.predict(xgb.DMatrix(x), pred_leaf=True))


def classes() -> None:
    """Several classes by softmax, rows sampled by gradients."""
    x, y = table(2)
    labels = np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))
    data = xgb.DMatrix(x, labels)
    model = trained(
        data,
        objective="multi:softprob",
        num_class=4,
        subsample=0.5,
        sampling_method="gradient_based",
    )
    show("probabilities", model.predict(data))


def missing() -> None:
    """Missing values and categories."""
    rng = np.random.default_rng(3)
    x, y = table(3)
    x[rng.random(x.shape) < 0.3] = np.nan
    x[:, 5] = rng.integers(0, 12, len(x))
    kinds = ["c" if i == 5 else "q" for i in range(x.shape[1])]
    data = xgb.DMatrix(x, y, feature_types=kinds, enable_categorical=True)
    model = trained(data, max_cat_to_onehot=4)
    show("predicted", model.predict(data))


def quantiles() -> None:
    """A matrix of quantiles that is built on the GPU, from batches of an iterator."""

    class Batches(xgb.DataIter):
        """Four batches."""

        def __init__(self) -> None:
            super().__init__()
            self.at = 0

        def next(self, input_data: Any) -> bool:
            if self.at == 4:
                return False
            x, y = table(10 + self.at, 5000)
            input_data(data=x, label=y)
            self.at += 1
            return True

        def reset(self) -> None:
            self.at = 0

    data = xgb.QuantileDMatrix(Batches(), max_bin=128)
    show("predicted", trained(data, max_bin=128).predict(data))


def ranking() -> None:
    """Pairs within groups."""
    x, y = table(4, 6000)
    relevance = np.clip(np.digitize(y, [-0.5, 0.5, 1.5]), 0, 3)
    data = xgb.DMatrix(x, relevance, qid=np.repeat(np.arange(60), 100))
    model = trained(data, objective="rank:ndcg", eval_metric="ndcg@10")
    show("scores", model.predict(data))


def contributions() -> None:
    """SHAP values and their interactions."""
    x, y = table(5, 2000, 8)
    data = xgb.DMatrix(x, y)
    model = trained(data)
    show("contributions", model.predict(data, pred_contribs=True), exact=False)
    show("interactions", model.predict(data, pred_interactions=True), exact=False)


def forests() -> None:
    """Trees in parallel, dropped trees, monotone constraints, loss-guided growth."""
    x, y = table(6)
    data = xgb.DMatrix(x, y)
    for options in (
        {"num_parallel_tree": 4, "subsample": 0.8, "colsample_bynode": 0.7},
        {"booster": "dart", "rate_drop": 0.2},
        {"grow_policy": "lossguide", "max_leaves": 31, "max_depth": 0},
        {"monotone_constraints": "(1,0,-1)", "objective": "reg:absoluteerror"},
    ):
        show(",".join(options), trained(data, **options).predict(data))


PARTS = {
    f.__name__: f
    for f in (regression, classes, missing, quantiles, ranking, contributions, forests)
}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
