"""(true labels, predicted labels, training counts) → numbers.

In: matrices and arrays; no model. Out: P@k, nDCG@k, propensity-scored metrics, and which labels the
hits come from. May use: `data`.
"""
