"""Slow and obviously correct implementations that the fast code is compared with."""

from __future__ import annotations

import math

import numpy as np

# Metrics: `truth` is a list of sets of labels, `top` a list of lists of labels, best first.


def precision_at_k(truth, top, k):
    return sum(len(t & set(p[:k])) / k for t, p in zip(truth, top, strict=True)) / len(truth)


def recall_at_k(truth, top, k):
    shares = [len(t & set(p[:k])) / len(t) if t else 0.0 for t, p in zip(truth, top, strict=True)]
    return sum(shares) / len(shares)


def ndcg_at_k(truth, top, k):
    total = 0.0
    for true, predicted in zip(truth, top, strict=True):
        if true:
            hits = [place for place, label in enumerate(predicted[:k], 1) if label in true]
            ideal = range(1, min(k, len(true)) + 1)
            total += sum(1 / math.log2(r + 1) for r in hits) / sum(
                1 / math.log2(r + 1) for r in ideal
            )
    return total / len(truth)


def psp_at_k(truth, top, p, k):
    reached = attainable = 0.0
    for true, predicted in zip(truth, top, strict=True):
        reached += sum(1 / p[label] for label in predicted[:k] if label in true)
        attainable += sum(sorted((1 / p[label] for label in true), reverse=True)[:k])
    return reached / attainable if attainable else 0.0


def psndcg_at_k(truth, top, p, k):
    reached = attainable = 0.0
    for true, predicted in zip(truth, top, strict=True):
        for i, label in enumerate(predicted[:k]):
            if label in true:
                reached += 1 / p[label] / math.log2(i + 2)
        for i, gain in enumerate(sorted((1 / p[label] for label in true), reverse=True)[:k]):
            attainable += gain / math.log2(i + 2)
    return reached / attainable if attainable else 0.0


def coverage_at_k(truth, top, k):
    true_somewhere = set().union(*truth)
    found = set().union(*(t & set(p[:k]) for t, p in zip(truth, top, strict=True)))
    return len(found) / len(true_somewhere) if true_somewhere else 0.0


def f1_scores(truth, sets):
    labels = set().union(*truth, *sets)
    pairs = list(zip(truth, sets, strict=True))
    found = {n: sum(n in t and n in p for t, p in pairs) for n in labels}
    total = {n: sum((n in t) + (n in p) for t, p in pairs) for n in labels}
    return {
        "micro-F1": 2 * sum(found.values()) / max(sum(total.values()), 1),
        "macro-F1": sum(2 * found[n] / total[n] for n in labels) / max(len(labels), 1),
    }


def brute_force_scores(Xt, W):
    """Score transformed rows × labels: float32 products, added in float32 by ascending feature."""
    X, weights = Xt.toarray(), W.toarray().T
    scores = np.zeros((X.shape[0], weights.shape[1]), dtype=np.float32)
    for row, values in enumerate(X):
        for feature in np.flatnonzero(values):
            scores[row] += values[feature] * weights[feature]
    return scores


def topk(scores, k):
    """Return the k best labels and scores per row, ties to the smaller label; −1, −inf beyond."""
    n_rows = len(scores)
    labels = np.full((n_rows, k), -1, dtype=np.int32)
    best = np.full((n_rows, k), -np.inf, dtype=np.float32)
    for row in range(n_rows):
        order = np.argsort(-scores[row], kind="stable")[:k]
        labels[row, : len(order)] = order
        best[row, : len(order)] = scores[row, order]
    return labels, best


# The problem of one label: transformed rows (dense or sparse, bias last), s = ±1; the loss of a row
# counts a times if it is positive, else b times.


def costs(s, a, b):
    return np.where(s > 0, a, b)


def objective(X, s, w, C, a=1.0, b=1.0):
    slack = np.maximum(0, 1 - s * (X @ w))
    return 0.5 * w @ w + C * slack @ (costs(s, a, b) * slack)


def gradient(X, s, w, C, a=1.0, b=1.0):
    z = X @ w
    inside = s * z < 1
    return w + 2 * C * (X.T @ np.where(inside, costs(s, a, b) * (z - s), 0))


def gradient_allowed(X, s, C, tol, a=1.0, b=1.0):
    positives = np.count_nonzero(s > 0)
    rarer = max(min(positives, len(s) - positives), 1)
    at_zero = gradient(X, s, np.zeros(X.shape[1]), C, a, b)
    return tol * rarer / len(s) * np.linalg.norm(at_zero)


def minimum(X, s, C, a=1.0, b=1.0):
    """Find the optimum by Newton steps with a halving line search, in double precision."""
    X = np.asarray(X.todense() if hasattr(X, "todense") else X, dtype=np.float64)
    w = np.zeros(X.shape[1])
    for _ in range(200):
        g = gradient(X, s, w, C, a, b)
        if np.linalg.norm(g) < 1e-9:
            break
        inside = s * (X @ w) < 1
        rows, cost = X[inside], costs(s, a, b)[inside]
        step = np.linalg.solve(np.eye(len(w)) + 2 * C * rows.T @ (cost[:, None] * rows), -g)
        t = 1.0
        while objective(X, s, w + t * step, C, a, b) > objective(X, s, w, C, a, b) and t > 1e-12:
            t /= 2
        if t <= 1e-12:  # rounding leaves no better point
            break
        w = w + t * step
    return w


# The same under the L1 penalty: ‖w‖₁ in place of ½‖w‖².


def l1_objective(X, s, w, C):
    slack = np.maximum(0, 1 - s * (X @ w))
    return np.abs(w).sum() + C * slack @ slack


def l1_breach(X, s, w, C):
    """Return by how much each weight violates the optimality condition 0 ∈ ∂f."""
    slope = 2 * C * (X.T @ (-s * np.maximum(0, 1 - s * (X @ w))))
    return np.where(w != 0, np.abs(slope + np.sign(w)), np.maximum(np.abs(slope) - 1, 0))


def l1_breach_allowed(X, s, C, tol):
    """Return LIBLINEAR's bound on the sum of all violations."""
    positives = np.count_nonzero(s > 0)
    rarer = max(min(positives, len(s) - positives), 1)
    return tol * rarer / len(s) * l1_breach(X, s, np.zeros(X.shape[1]), C).sum()


def l1_lower_bound(X, s, w, C):
    """Return a value of the dual function, a lower bound of the objective; tight at the optimum."""
    alpha = 2 * C * np.maximum(0, 1 - s * (X @ w))
    alpha = alpha / max(1.0, np.abs(X.T @ (s * alpha)).max(initial=0))
    return alpha.sum() - alpha @ alpha / (4 * C)


def macro_f1_at_k(truth, top, k):
    hits, assigned, true = {}, {}, {}
    for labels, row in zip(truth, top, strict=True):
        for label in labels:
            true[label] = true.get(label, 0) + 1
        for label in row[:k]:
            if label >= 0:
                assigned[label] = assigned.get(label, 0) + 1
                hits[label] = hits.get(label, 0) + (label in labels)
    seen = {*assigned, *true}
    f1 = [2 * hits.get(x, 0) / (assigned.get(x, 0) + true.get(x, 0)) for x in seen]
    return sum(f1) / len(f1) if f1 else 0.0
