"""scikit-learn's interface: estimators of rows and of texts, and scorers; the room imports it.

In: matrices, frames, texts and labels as a caller has them. Out: estimators around a `Model`. May
use: `cpu`, `data`, `features`, `measure`, `solve`, `model`, `training`.
"""
