"""What weighting and ranking by propensity gain for rare labels, and what they cost.

Trains with equal weights and with the losses of positive rows weighted by propensity, and ranks in
several ways. With ``--validation``, models are trained without 15 % of the training rows and
evaluated on those, with propensities from the remaining rows: choose settings there. Otherwise they
are trained on all rows and evaluated on the test rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import data
from dismec.model.model import Model
from dismec.training.params import TrainingParams
from dismec.training.train import fit
from machine import print_heading

DEPTHS = (1, 3, 5)
SHARE = 0.15  # of the rows held out for validation
TRAININGS = ((1.0, None), (0.3, "propensity"))


def split(X: Any, Y: Any) -> tuple[Any, Any, Any, Any]:
    """Split rows into those to train on and those to evaluate on."""
    order = np.random.default_rng(7).permutation(X.shape[0])
    n_judges = int(SHARE * X.shape[0])
    judges, others = np.sort(order[:n_judges]), np.sort(order[n_judges:])
    return X[others], Y[others], X[judges], Y[judges]


def views(model: Any) -> Iterator[tuple[str, Model]]:
    """Yield ways of ranking, with their names."""
    yield "score", model.reranked(0.0, probabilities=False)
    for alpha in (0.15, 0.3):
        yield f"score + {alpha}·log(1/p)", model.reranked(alpha, probabilities=False)
    yield "P", model.reranked(0.0)
    for alpha in (0.25, 0.5, 0.75):
        yield f"P/p^{alpha}", model.reranked(alpha)
    yield "P/p", model.reranked(1.0)


def measure(name: str, trainings: list[tuple[float, str | None]], validation: bool) -> None:
    """Print the lines of the table for a set."""
    X, Y, _ = data.load(name)
    if validation:
        X, Y, X_judge, Y_judge = split(X, Y)
    else:
        X_judge, Y_judge, _ = data.load(name, "test")
    for C, weighting in trainings:
        begin = time.perf_counter()
        model = fit(X, Y, TrainingParams(C=C, weighting=weighting, calibrate=True))
        seconds = time.perf_counter() - begin
        print(
            f"{name}: C {C:g}, weighting {weighting}, {model.nnz:,} weights, "
            f"trained in {seconds:.0f} s"
        )
        for ranking, view in views(model):
            begin = time.perf_counter()
            view.predict_topk(X_judge, max(DEPTHS), threads=1)
            per_row = 1000 * (time.perf_counter() - begin) / X_judge.shape[0]
            found = view.evaluate(X_judge, Y_judge, DEPTHS)
            figures = (
                " / ".join(f"{found[f'{metric}@{k}']:5.2f}" for k in DEPTHS)
                for metric in ("P", "PSP")
            )
            print(
                f"  {ranking:22}  P {next(figures)}  PSP {next(figures)}  {per_row:.2f} ms per row"
            )
            sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=data.SETS)
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--C", type=float, nargs="+", help="instead of 1, and 0.3 if weighted")
    args = parser.parse_args()
    trainings = list(TRAININGS)
    if args.C:
        trainings = [(C, weighting) for weighting in (None, "propensity") for C in args.C]
    print_heading()
    for name in args.sets:
        measure(name, trainings, args.validation)


if __name__ == "__main__":
    main()
