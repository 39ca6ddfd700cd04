"""What weighting by propensity and aiming at metrics gain for rare labels, and what they cost.

Trains with equal weights and with the losses of positive rows weighted by propensity, and ranks in
several ways. With ``--validation``, models are trained without 15 % of the training rows and
evaluated on those, with propensities from the remaining rows: choose settings there. Otherwise they
are trained on all rows and evaluated on the test rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import data
from dismec.model.model import Model
from dismec.training.params import TrainingParams
from dismec.training.train import fit
from machine import print_heading

DEPTHS = (1, 3, 5)
METRICS = ("P", "PSP", "Coverage", "macro-F1")
SHARE = 0.15  # of the rows held out for validation
TRAININGS = ((1.0, None), (0.3, "propensity"))


def split(X: Any, Y: Any) -> tuple[Any, Any, Any, Any]:
    """Split rows into those to train on and those to evaluate on."""
    order = np.random.default_rng(7).permutation(X.shape[0])
    n_judges = int(SHARE * X.shape[0])
    judges, others = np.sort(order[:n_judges]), np.sort(order[n_judges:])
    return X[others], Y[others], X[judges], Y[judges]


def aims(model: Model) -> Iterator[tuple[str, str]]:
    """Yield ways of choosing labels, by name and as an aim."""
    if model.calibration is None:
        for alpha in (0, 0.15, 0.3):
            yield f"score + {alpha}·log(1/p)", f"psp:{alpha}"
        return
    for alpha in (0, 0.25, 0.5, 0.75, 1):
        yield f"P/p^{alpha}", f"psp:{alpha}"
    yield "for macro-F1", "macro-f1"
    yield "for coverage", "coverage"


def measure(name: str, trainings: list[tuple[float, str | None]], validation: bool) -> None:
    """Print the lines of the table for a set."""
    X, Y, _ = data.load(name)
    if validation:
        X, Y, X_judge, Y_judge = split(X, Y)
    else:
        X_judge, Y_judge, _ = data.load(name, "test")
    for C, weighting in trainings:
        print(f"{name}: C {C:g}, weighting {weighting}")
        params = TrainingParams(C=C, weighting=weighting)
        for calibrate in (False, True):
            model = fit(X, Y, replace(params, calibrate=calibrate))
            for ranking, aim in aims(model):
                begin = time.perf_counter()
                model.predict_topk(X_judge, max(DEPTHS), aim=aim, threads=1)
                per_row = 1000 * (time.perf_counter() - begin) / X_judge.shape[0]
                found = model.evaluate(X_judge, Y_judge, DEPTHS, aim=aim)
                figures = "  ".join(
                    f"{metric} " + " / ".join(f"{found[f'{metric}@{k}']:5.2f}" for k in DEPTHS)
                    for metric in METRICS
                )
                print(f"  {ranking:22}  {figures}  {per_row:.2f} ms per row", flush=True)


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
