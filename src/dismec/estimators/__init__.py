"""scikit-learn's interface: estimators of rows and of texts, and scorers.

In: matrices, frames, texts and labels in the caller's form. Out: estimators around a `Model`. May
use: `cpu`, `data`, `features`, `measure`, `solve`, `model`, `training`. Only this package imports
scikit-learn.
"""

try:
    import sklearn as _sklearn  # noqa: F401  the only package needed here that may be missing
except ModuleNotFoundError as _error:
    if _error.name != "sklearn":
        raise
    raise ModuleNotFoundError(
        "the estimators need scikit-learn: pip install 'dismec[sklearn]'", name="sklearn"
    ) from None
