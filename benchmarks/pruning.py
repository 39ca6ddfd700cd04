"""How reliable the choice of delta is, by the number of rows it is based on.

Trains on Eurlex-4K, prunes at every delta of the grid, and chooses on random subsets of the test
rows, many times. The loss at the chosen delta is then measured on all test rows, as the worst of
P@1, P@3 and P@5.
"""

from __future__ import annotations

import numpy as np

import data
from dismec.training.held_out import DEPTHS
from dismec.training.held_out import pick_delta as pick
from dismec.training.params import DELTAS as GRID
from dismec.training.train import fit
from machine import print_heading

SIZES = (100, 300, 1000, 3000)
TIMES = 300


def hits() -> np.ndarray:
    """Return P@k in percent for every test row: (grid, rows, depths)."""
    test = data.load("eurlex-4k", "test")
    truth = test.Y.toarray() > 0
    model = fit(*data.load("eurlex-4k")[:2])
    result = []
    for delta in GRID:
        model = model.pruned(delta)
        top, _ = model.predict_topk(test.X, max(DEPTHS))
        found = np.take_along_axis(truth, top, axis=1)
        result.append([100 * found[:, :k].mean(axis=1) for k in DEPTHS])
        print(f"delta {delta:5}  {model.weights.nnz:9,} weights  P@k {np.mean(result[-1], axis=1)}")
    return np.moveaxis(np.array(result), 1, 2)


def main() -> None:
    print_heading()
    np.set_printoptions(precision=2)
    per_row = hits()
    means = per_row.mean(axis=1)
    loss = (means[0] - means).max(axis=1)
    rng = np.random.default_rng(0)
    print("\nrows  delta 25 %  75 %  loss: median  95 %")
    for size in SIZES:
        parts = (rng.choice(per_row.shape[1], size, replace=False) for _ in range(TIMES))
        chosen = np.array([pick(per_row[:, part].mean(axis=1), size) for part in parts])
        low, high = np.quantile(chosen, [0.25, 0.75]).astype(int)
        median, most = np.quantile(loss[chosen], [0.5, 0.95])
        print(f"{size:4}  {GRID[low]:10}  {GRID[high]:4}  {median:12.2f}  {most:4.2f}")


if __name__ == "__main__":
    main()
