"""The systems of this package for `dismec.compare.worker`: dismec itself and its baselines."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dismec.compare.fastxml import FastXML
from dismec.compare.leml import LEML, RobustXML
from dismec.compare.lpsr import LPSR
from dismec.compare.pd_sparse import PDSparse
from dismec.compare.sleec import SLEEC
from dismec.compare.worker import Assignment, K, Stopwatch, System, Trained, main
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.training.params import TrainingParams
from dismec.training.train import train, train_text

_ALPHAS = (0.25, 0.5, 0.75, 1.0)  # of P/p^alpha, between precision and propensity-scored precision


def _trained(work: Assignment, **params: Any) -> Trained:
    path = work.scratch / "model"
    with Stopwatch() as training:
        model = train(work.X, work.Y, path, TrainingParams(**params), threads=work.threads)
    return _predicting(work, training, model)


def _tuned(work: Assignment) -> Trained:
    """Train with what `dismec train` does by default: the best C on held-out rows, calibrated."""
    trained = _trained(work, C="auto", calibrate=True)
    return trained._replace(note=f"C = {open_model(work.scratch / 'model').params['C']:g}")


def _best(work: Assignment) -> Trained:
    """Train with everything that pays on held-out rows, on texts if there are any."""
    lines, path = work.folder / "train.ft", work.scratch / "model"
    if not lines.exists():
        return _trained(work, best=True)
    with Stopwatch() as training:
        model = train_text(lines, path, TrainingParams(best=True, tfidf=True), threads=work.threads)
    numbers = np.array([*map(int, model.names or ()), -1])  # the last for empty places
    return Trained(
        training,
        0.0,
        lambda texts: model.predict_topk(texts, K, threads=1),
        lambda result: numbers[result[0]].tolist(),
        texts=True,
    )


def _predicting(work: Assignment, training: Stopwatch, model: Model) -> Trained:
    rankings: dict[str, Callable[[Any], Any]] = {}
    if model.calibration is not None:
        rankings["score"] = partial(model.predict_topk, k=K, threads=work.threads, rank="score")
        for alpha in _ALPHAS:
            ranked = partial(model.predict_topk, k=K, threads=work.threads, aim=f"psp:{alpha}")
            rankings[f"P/p^{alpha:g}"] = ranked
    return Trained(
        training,
        0.0,
        lambda rows: model.predict_topk(rows, K, threads=1),
        lambda result: result[0].tolist(),
        rankings=rankings,
    )


def _baseline(make: Callable[..., Any], work: Assignment, **params: Any) -> Trained:
    """Train a baseline."""
    with Stopwatch() as training:
        fitted = make(seed=work.seed, **params).fit(work.X, work.Y, threads=work.threads)
    with Stopwatch() as saving, (work.scratch / "model.pkl").open("wb") as file:
        pickle.dump(fitted, file)
    return Trained(
        training,
        saving.seconds,
        lambda rows: fitted.predict_topk(rows, K),
        lambda result: result[0].tolist(),
    )


_RUN: dict[str, Callable[[Assignment], Trained]] = {
    "dismec": _trained,
    "dismec-tuned": _tuned,
    "dismec-best": _best,
    "dismec-calibrated": partial(_trained, calibrate=True),
    "dismec-refined": partial(_trained, refine=True, calibrate=True),
    "dismec-l1": partial(_trained, penalty="l1"),
    "dismec-auto": partial(_trained, delta="auto"),
    "fastxml": partial(_baseline, FastXML),
    "sleec": partial(_baseline, SLEEC),
    "leml": partial(_baseline, LEML),
    "robustxml": partial(_baseline, RobustXML),
    "lpsr-nb": partial(_baseline, LPSR),
    "lpsr-ovr": partial(_baseline, LPSR, base="ovr"),
    "pd-sparse": partial(_baseline, PDSparse),
}
OURS = {name: System(run, "dismec", "dismec") for name, run in _RUN.items()}

if __name__ == "__main__":
    main(OURS)
