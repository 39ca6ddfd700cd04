"""The rounds of one label, drawn: its working set, the margin and the stopping rule.

Solves one label of Eurlex-4K (`--rank`, by frequency) by the working-set method as
docs/explanation/solver.md states it, in plain numpy, and draws each round to `-o FILE`. The figure
in the documentation comes from this script. Exits with 1 if the objective differs from that of
`Problem.solve` by more than 1e-3 of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import data
from dismec.features.transform import Transform
from dismec.report.figures import BLUE, GREY, ORANGE, PALE_BLUE, VERMILION, draw_svg, plain_ticks
from dismec.solve.problem import Problem, SolverParams
from machine import print_heading

C, TOL = 1.0, 0.01
REDUCTION = 0.003  # a round ends when the gradient of its sub-problem is down to this share
MOST_ADDED = 160  # rows added per round, or as many as W has inside the margin
FAR, NEAR = 0.1, 0.7  # rows this far outside the margin leave W if at most this share is nearer
DIFFERENCE = 1e-3


@dataclass(frozen=True)
class Round:
    """A round after its pass over all rows."""

    set_rows: int  # |W|
    inside: int  # rows of W inside the margin
    violators: int  # rows outside W inside the margin
    objective: float  # f(w) over all rows
    stop_ratio: float  # upper bound of ‖∇f(w)‖ divided by what the stopping rule allows


def minimize(A: Any, b: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, float]:
    """Minimize ½‖w‖² + C·‖max(0, b + A·w)‖² by exact steps in a subspace, starting from `w`.

    Returns the weights and the norm of the gradient, at most REDUCTION of its norm at the start.
    """
    bias = np.zeros(len(w))
    bias[-1] = 1
    slack, steps, enough = b + A @ w, [], None
    while True:
        gradient = w + 2 * C * (A.T @ np.maximum(0, slack))
        norm = float(np.linalg.norm(gradient))
        if enough is None:
            enough = REDUCTION * norm
        if norm <= enough:
            return w, norm
        D = np.stack([gradient, *steps, bias], axis=1)
        step = D @ best_step(D, A @ D, w, slack)
        w, slack = w + step, slack + A @ step
        steps = [step, *steps[:1]]


def best_step(D: np.ndarray, M: np.ndarray, w: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """Minimize ½‖w + D·a‖² + C·‖max(0, slack + M·a)‖² over a, by Newton's method."""

    def value(a: np.ndarray) -> float:
        return float(0.5 * np.sum((w + D @ a) ** 2) + C * np.sum(np.maximum(0, slack + M @ a) ** 2))

    a, gram = np.zeros(D.shape[1]), D.T @ D
    for _ in range(50):
        inside = slack + M @ a > 0
        slope = D.T @ w + gram @ a + 2 * C * M[inside].T @ (slack + M @ a)[inside]
        change = -np.linalg.lstsq(gram + 2 * C * M[inside].T @ M[inside], slope, rcond=None)[0]
        while value(a + change) > value(a) and np.abs(change).max() > 1e-12:
            change /= 2
        a += change
        if np.abs(change).max() <= 1e-9 * max(1, np.abs(a).max()):
            break
    return a


def solve(X: Any, s: np.ndarray) -> tuple[np.ndarray, list[Round]]:
    """Return the weights of a label and its rounds; X has the bias as its last column."""
    n, sums = X.shape[0], np.asarray(X.sum(axis=0)).ravel()
    longest = np.sqrt(X.multiply(X).sum(axis=1).max())
    positive = s > 0
    pos = np.count_nonzero(positive)
    at_zero = 2 * C * np.linalg.norm(sums - 2 * np.asarray(X[positive].sum(axis=0)).ravel())
    liblinear = TOL * max(min(pos, n - pos), 1) / n * at_zero
    w = np.zeros(X.shape[1])
    w[-1] = -1  # the solution without positives
    W, rounds = positive.copy(), []
    while True:
        # 1. Minimize f_W. The last row stands for all rows outside W: their mean, times √n.
        root = np.sqrt(np.count_nonzero(~W))
        mean = (sums - np.asarray(X[W].sum(axis=0)).ravel()) / max(root, 1)
        A = sp.vstack([sp.diags_array(-s[W]) @ X[W], sp.csr_array(mean[None])], format="csr")
        w, norm = minimize(A, np.append(np.ones(A.shape[0] - 1), root), w)
        # 2. Score all rows.
        slack = 1 - s * (X @ w)
        inside, violators = W & (slack > 0), ~W & (slack > 0)
        # 3. Judge.
        of_mean_row = root * max(0.0, root + float(mean @ w))
        bound = norm + 2 * C * longest * (slack[violators].sum() + of_mean_row)
        objective = 0.5 * w @ w + C * np.sum(np.maximum(0, slack) ** 2)
        allowed = min(liblinear, np.sqrt(2 * 0.1 * TOL * objective))
        counts = (np.count_nonzero(rows) for rows in (W, inside, violators))
        rounds.append(Round(*counts, float(objective), float(bound / allowed)))
        if bound <= allowed:
            return w, rounds
        # 4. Grow, and drop the rows that are far outside the margin if they are many.
        near = W & (positive | (slack > -FAR))
        if np.count_nonzero(near) < NEAR * np.count_nonzero(W):
            W = near
        worst = np.argsort(-np.where(violators, slack, -np.inf), kind="stable")
        room = max(MOST_ADDED, np.count_nonzero(inside))
        W[worst[: min(room, np.count_nonzero(violators))]] = True


def draw(rounds: Sequence[Round], best: float, n_rows: int, title: str) -> bytes:
    """Draw the rows of each round as bars, and below them how far the round is from done."""
    places = np.arange(1, len(rounds) + 1)

    def panels(ax: Any) -> None:
        figure = ax.figure
        ax.remove()
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        figure.suptitle(title, fontsize=11)
        for i, (name, color, label) in enumerate(
            (
                ("set_rows", PALE_BLUE, "working set W"),
                ("inside", BLUE, "rows of W inside the margin"),
                ("violators", ORANGE, "violators: other rows inside it"),
            )
        ):
            heights = [getattr(entry, name) for entry in rounds]
            x = places + 0.3 * (i - 1)
            upper.bar(x, heights, 0.28, color=color, label=label)
            for at, height in zip(x, heights, strict=True):
                upper.annotate(
                    f"{height:,}", (at, max(height, 1)), xytext=(0, 2), textcoords="offset points",
                    ha="center", fontsize=8,
                )  # fmt: skip
        upper.set_yscale("log")
        upper.set_ylim(1, 2 * n_rows)
        upper.axhline(n_rows, color=GREY, lw=1, ls="--")
        upper.annotate(
            f"all {n_rows:,} rows", (1, n_rows), xycoords=("axes fraction", "data"),
            xytext=(0, -3), textcoords="offset points", ha="right", va="top", fontsize=9,
            color=GREY,
        )  # fmt: skip
        upper.set_ylabel("rows")
        upper.grid(axis="x", visible=False)
        plain_ticks(upper.yaxis)
        upper.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=9)

        lower.axhline(1, color=VERMILION, lw=1.5, ls="--")
        lower.plot(
            places, [entry.stop_ratio for entry in rounds], "o-", color=BLUE, label="bound on ‖∇f‖"
        )
        gaps = [(entry.objective - best) / (0.1 * TOL * entry.objective) for entry in rounds]
        lower.plot(places, gaps, "s--", color=ORANGE, label="gap f(w) − min f")
        lower.set_yscale("log")
        lower.annotate(
            "stopping rule", (0, 1), xycoords=("axes fraction", "data"), xytext=(4, 3),
            textcoords="offset points", va="bottom", fontsize=9, color=VERMILION,
        )  # fmt: skip
        lower.set_ylabel("multiple of the\nallowed value")
        lower.set_xlabel("round")
        lower.set_xticks(places)
        lower.grid(axis="x", visible=False)
        plain_ticks(lower.yaxis)
        lower.legend(loc="upper right", fontsize=9)
        figure.align_ylabels()

    return draw_svg(panels, height=6.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=data.SETS, default="eurlex-4k")
    parser.add_argument("--rank", type=int, default=100, help="of the label by frequency, from 0")
    parser.add_argument("-o", "--output", type=Path, help="SVG file")
    args = parser.parse_args()

    print_heading()
    X, Y, _ = data.load(args.set)
    transform = Transform.fit(X)
    rows = transform.apply(X).astype(np.float64)
    label = np.argsort(-data.label_counts(Y), kind="stable")[args.rank]
    s = np.where(sp.csc_array(Y)[:, [label]].toarray().ravel() != 0, 1.0, -1.0)
    _, rounds = solve(rows, s)

    problem, labels = Problem(X, Y, transform), np.array([label])
    best = float(problem.solve(labels, SolverParams(C=C, delta=0, tol=1e-4)).objective[0])
    native = problem.solve(labels, SolverParams(C=C, delta=0, tol=TOL))
    print("round  rows in W  inside  violators   objective  ‖∇f‖ ÷ allowed")
    for i, entry in enumerate(rounds, 1):
        print(
            f"{i:5} {entry.set_rows:10,} {entry.inside:7,} {entry.violators:10,}"
            f" {entry.objective:11.5f} {entry.stop_ratio:15.3g}"
        )
    print(f"Problem.solve: {native.passes[0]} rounds, objective {native.objective[0]:.5f}")
    if args.output is not None:
        n = np.count_nonzero(s > 0)
        title = f"A label of {args.set} with {n:,} of {len(s):,} rows"
        args.output.write_bytes(draw(rounds, best, len(s), title))
    difference = abs(rounds[-1].objective / native.objective[0] - 1)
    good = difference <= DIFFERENCE
    print(f"difference {difference:.1e}, bound {DIFFERENCE:g}: {'met' if good else 'missed'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
