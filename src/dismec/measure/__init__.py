"""(true labels, predicted labels, training counts) → numbers.

In: matrices and arrays; no model. Out: P@k, nDCG@k, propensity-scored metrics, where the hits are.
May use: `data`.
"""
