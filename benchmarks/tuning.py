"""The cost and the quality of choosing C; exits with 1 if it costs or loses more than it may.

Both are measured in CPU seconds, so that other work on the machine changes little. The final
training at the chosen C is counted. `--curve` also prints P@k and size for values of delta, for
the first set.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import data
from dismec import TextParams, TrainingParams, pruning_curve, train
from dismec.data.corpus import Texts
from dismec.features.text_rows import learn, weighted_rows
from dismec.training.split import held_out
from dismec.training.train import fit
from machine import print_heading

MOST = 1.45  # training runs, including the one of the model
MOST_LOSS = 0.2  # points of nDCG@5
GRID = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def rows_of(name: str) -> tuple[Any, Any, Any, Any, bool]:
    """Return X and Y of a set's training and test part, and whether they are terms of texts."""
    folder = data.folder_of(name)
    if not any(folder.glob("train.jsonl*")):
        parts = [data.load(name, part) for part in ("train", "test")]
        return parts[0].X, parts[0].Y, parts[1].X, parts[1].Y, False
    texts = [Texts.of(next(folder.glob(f"{part}.jsonl*")), None) for part in ("train", "test")]
    vocabulary, names = learn(texts[0], TextParams())
    numbers = {name: number for number, name in enumerate(names)}
    (X, Y, _), (X_test, Y_test, _) = (weighted_rows(t, vocabulary, numbers)[0] for t in texts)
    return X, Y, X_test, Y_test, True


def compare(name: str, threads: int) -> tuple[float, float]:
    """Print the results of a set; return the cost of choosing, and the loss of the chosen C.

    The cost is in training runs at the chosen C. The loss is in points of nDCG@5 on held-out rows,
    for which all labels are trained, against the best C of a grid.
    """
    X, Y, X_test, Y_test, tfidf = rows_of(name)
    params = TrainingParams(C="auto", tfidf=tfidf)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        both, tuned = cpu_seconds(lambda: train(X, Y, folder / "tuned", params, threads=threads))
        fixed = replace(params, C=tuned.params["C"])
        one, _ = cpu_seconds(lambda: train(X, Y, folder / "one", fixed, threads=threads))
    held = held_out(X.shape[0])
    others = np.delete(np.arange(X.shape[0]), held)
    quality = {}
    for C in sorted({*GRID, fixed.C}):
        model = fit(X[others], Y[others], replace(fixed, C=C), threads=threads)
        quality[C] = model.evaluate(X[held], Y[held])[params.metric]
    loss = max(quality.values()) - quality[fixed.C]
    listed = ", ".join(f"{C:g}: {value:.2f}" for C, value in quality.items())
    print(f"{name}: C {fixed.C:g}; {params.metric} of all labels on held-out rows: {listed}")
    found = tuned.evaluate(X_test, Y_test)
    print("test rows, P@1/3/5:", " / ".join(f"{found[f'P@{k}']:.2f}" for k in (1, 3, 5)))
    print(f"training {one:.1f} s of CPU, with choosing C {both:.1f}: {both / one:.2f} times\n")
    return both / one, loss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sets", nargs="+", default=["eurlex-4k", "citeulike-t"], help="also sets of texts"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--curve", action="store_true", help="also print P@k by delta")
    args = parser.parse_args()
    print_heading()
    results = {name: compare(name, args.threads) for name in args.sets}
    if args.curve:
        train_part, test = data.load(args.sets[0]), data.load(args.sets[0], "test")
        with tempfile.TemporaryDirectory() as scratch:
            everything = TrainingParams(delta=0)
            model = train(*train_part[:2], f"{scratch}/model", everything, threads=args.threads)
            table = pruning_curve(model, *test[:2], threads=args.threads)
        for row in table:
            quality = " / ".join(f"{row[f'P@{k}']:.2f}" for k in (1, 3, 5))
            size = f"{row['weights']:>10,} weights {row['bytes'] / 1e6:6.2f} MB"
            print(f"{row['delta']:6g}  P@k {quality}  {size}  {row['ms per row']:.3f} ms per row")
    missed = {n: found for n, found in results.items() if found[0] > MOST or found[1] > MOST_LOSS}
    for name, (ratio, loss) in missed.items():
        print(f"{name}: {ratio:.2f} training runs, at most {MOST:g}; {loss:.2f} points lost")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
