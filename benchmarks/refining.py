"""What refining gains and costs on the real sets; exits with 1 if a bound is missed.

For each set a plain model, a calibrated one, and one that is refined and calibrated are trained in
turns, with all threads:

- P@k and PSP@k on the test rows, ranked by score for the plain model and by probability for the
  others, as in `dismec evaluate`, with the half-width of a 95 % interval of P@1;
- the fastest training time of each: calibrated at most 1.3 times the plain one, refined and
  calibrated at most 3.5 times, if that takes more than two seconds;
- the time to predict a batch and single rows on one thread: for a refined model a batch takes at
  most 2.5 times as long as for the plain one, if that takes more than 0.01 ms per row.

`--curve` adds P@1 against PSP@1 for rankings by P/p^alpha, and draws it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import data
from dismec.data.corpus import Texts
from dismec.data.dataset import Dataset
from dismec.features.text_rows import text_dataset
from dismec.training.params import TrainingParams
from dismec.training.train import train, train_text
from machine import print_heading

NUMERIC = (*data.SETS, "bibtex")
TEXTS = ("cooking-text", "eurlex57k-text")
KS = (1, 3, 5)
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_CALIBRATED, MOST_REFINED, MOST_BATCH = 1.3, 3.5, 2.5  # times the plain model
SMALL, SHORT = 2.0, 0.01  # seconds and ms below which ratios mean little
PUBLISHED = {"ProXML": (83.4, 45.2)}  # P@1 and PSP@1 on Eurlex-4K, by its authors


def files(name: str, part: str) -> Path:
    folder = data.find("bibtex").parent.parent / name
    return next(iter(folder.glob(f"{part}.jsonl*")))


def trained(name: str, params: TrainingParams, folder: Path) -> tuple[Any, Dataset, float]:
    """Return a model of a set, its test rows, and the time to train it from loaded data."""
    if name in TEXTS:
        texts = Texts.of(files(name, "train"))
        begin = time.perf_counter()
        model = train_text(texts, folder, params, overwrite=True)
        seconds = time.perf_counter() - begin
        return model, text_dataset(model, files(name, "test"))[0], seconds
    rows, test = data.load(name), data.load(name, "test")
    begin = time.perf_counter()
    model = train(rows.X, rows.Y, folder, params, overwrite=True)
    return model, test, time.perf_counter() - begin


def fastest(work: Callable[[], Any], times: int = 3) -> float:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def prediction(model: Any, X: Any, singles: int = 100) -> tuple[float, float]:
    """Return ms per row of a batch, and of a single row, on one thread."""
    rows = [X[[i]] for i in range(min(singles, X.shape[0]))]
    batch = fastest(lambda: model.predict_topk(X, 5, threads=1)) / X.shape[0]
    one = fastest(lambda: [model.predict_topk(row, 5, threads=1) for row in rows]) / len(rows)
    return 1e3 * batch, 1e3 * one


def shown(found: dict[str, float], what: str) -> str:
    return " / ".join(f"{found[f'{what}@{k}']:.2f}" for k in KS)


def measure(name: str, repeats: int, curve: Path | None) -> bool:
    """Print the results of a set; return whether all bounds are met."""
    text = {"tfidf": True} if name in TEXTS else {}
    kinds = {
        "plain": TrainingParams(**text),
        "calibrated": TrainingParams(**text, calibrate=True),
        "refined": TrainingParams(**text, refine=True, calibrate=True),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    models: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(repeats):
            for kind, params in kinds.items():
                models[kind], test, seconds = trained(name, params, Path(scratch) / kind)
                times[kind].append(seconds)
        speed = {kind: prediction(model, test.X) for kind, model in models.items()}
        best = {kind: min(seconds) for kind, seconds in times.items()}
        for kind, model in models.items():
            found = model.evaluate(test.X, test.Y, KS)
            p = found["P@1"] / 100
            interval = 196 * np.sqrt(p * (1 - p) / test.X.shape[0])
            weights = model.nnz
            print(
                f"{name:14} {kind:10} P@k {shown(found, 'P')} (± {interval:.1f})  "
                f"PSP@k {shown(found, 'PSP')}  train {best[kind]:.1f} s  "
                f"batch {speed[kind][0]:.3f} ms  one row {speed[kind][1]:.3f} ms  "
                f"weights {weights:,}"
            )
        if curve is not None:
            draw(name, models, test, curve)
    effect = models["refined"].params["refine_effect"]
    print(f"{name:14} held-out P@k before {effect['before']}, after {effect['after']}")
    calibrated, refined = (best[kind] / best["plain"] for kind in ("calibrated", "refined"))
    batch = speed["refined"][0] / speed["plain"][0]
    print(
        f"{name:14} times the plain model's: training {calibrated:.2f} calibrated, "
        f"{refined:.2f} refined; batch {batch:.2f}\n"
    )
    quick = calibrated <= MOST_CALIBRATED and refined <= MOST_REFINED
    return (quick or best["plain"] < SMALL) and (batch <= MOST_BATCH or speed["plain"][0] < SHORT)


def draw(name: str, models: dict[str, Any], test: Dataset, path: Path) -> None:
    """Draw P@1 against PSP@1, and print the points."""
    from matplotlib.figure import Figure

    plain, calibrated, refined = models.values()

    def point(model: Any, aim: str | None = None) -> tuple[float, float]:
        found = model.evaluate(test.X, test.Y, KS, aim=aim)
        return found["P@1"], found["PSP@1"]

    lines = {
        "refined, by P/p^alpha": [point(refined, f"psp:{alpha}") for alpha in ALPHAS],
        "calibrated, by P/p^alpha": [point(calibrated, f"psp:{alpha}") for alpha in ALPHAS],
        "plain, by score": [point(plain)],
    }
    if name == "eurlex-4k":
        lines |= {system: [published] for system, published in PUBLISHED.items()}
    for label, points in lines.items():
        print(f"{name:14} {label}: " + ", ".join(f"{p:.2f} / {psp:.2f}" for p, psp in points))
    figure = Figure((5.5, 3.6))
    axes = figure.add_subplot(xlabel="P@1", ylabel="PSP@1", title=name)
    for label, points in lines.items():
        axes.plot(*zip(*points, strict=True), "o-", label=label, markersize=4)
    axes.legend(frameon=False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=[*NUMERIC, *TEXTS])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--curve", type=Path, help="a folder for figures")
    args = parser.parse_args()
    if args.curve:
        args.curve.mkdir(parents=True, exist_ok=True)
    print_heading()
    met = []
    for name in args.sets:
        curve = args.curve / f"{name}-tail.svg" if args.curve else None
        met.append(measure(name, args.repeats, curve))
        sys.stdout.flush()
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
