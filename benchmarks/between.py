"""Whether Δ leads from the L2 model to the L1 model, as the paper says; prints a table.

Two one-vs-rest models of the same rows at C = 1: one with the L2 penalty, pruned at growing Δ, and
one with the L1 penalty. If Δ moved the first towards the second, the L2 model pruned to as many
weights as the L1 model would have about its precision, and mostly the same weights.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import scipy.sparse as sp

import data
from dismec import Model, TrainingParams
from dismec.training.train import fit
from machine import print_heading

DEPTHS = (1, 3, 5)


def weights(model: Model) -> sp.csr_array:
    """The weights without the bias, (n_labels, n_features)."""
    return sp.csr_array(model.weights[:, : model.n_features])


def support(W: sp.csr_array) -> sp.csr_array:
    return sp.csr_array((np.ones(W.nnz, bool), W.indices, W.indptr), shape=W.shape)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", default="eurlex-4k", choices=[*data.SETS, "bibtex"])
    args = parser.parse_args()
    print_heading()
    train, test = data.load(args.set), data.load(args.set, "test")
    l2 = fit(train.X, train.Y, TrainingParams(delta=0, precision="float32"))
    l1 = fit(train.X, train.Y, TrainingParams(penalty="l1", precision="float32"))
    W1 = support(weights(l1))
    sizes = np.sort(np.abs(weights(l2).data))[::-1]
    as_few = float(sizes[min(W1.nnz, len(sizes)) - 1])
    print(f"{args.set}: {'model':22} {'weights':>12}   {'P@1/3/5':20} of L1's weights kept")
    models = {"L2": l2}
    for delta in (0.01, 0.03, 0.1, 0.3, as_few):
        models[f"L2, Δ = {delta:.3g}"] = l2.pruned(delta)
    for name, model in {**models, "L1": l1}.items():
        W = support(weights(model))
        found = model.evaluate(test.X, test.Y, DEPTHS)
        shown = " / ".join(f"{found[f'P@{k}']:.2f}" for k in DEPTHS)
        shared = W.multiply(W1).nnz / W1.nnz
        print(f"{'':{len(args.set)}}  {name:22} {W.nnz:12,}   {shown:20} {100 * shared:.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
