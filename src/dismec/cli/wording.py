"""Error messages of the library, with Python parameters → command line flags."""

from __future__ import annotations

import re

__all__ = ["in_flags"]

# Phrases of the library → flags; a longer match comes before a shorter one.
_PHRASES = {
    "name another for the labels (labels=…)": "name another for the labels (--labels-to)",
    "pass dismec.TextRows(X)": "add --numeric",
    "calibrate=True": "--calibrate",
    "refine=True": "--refine",
    "(Model.pruned)": "(dismec prune --precision)",
    "(Model.subset)": "(dismec subset --labels FILE)",
    "(overwrite=True)": "(--overwrite)",
    "(validation=…)": "(--validation)",
    "(labels=…)": "(--labels)",
    "(names=…)": "(--label-names)",
    'delta="auto"': "--delta auto",
    "penalty='l1'": "--penalty l1",
}
_PARAMETERS = (
    "min_df",
    "max_df",
    "max_features",
    "word_ngrams",
    "char_ngrams",
    "positive_weight",
    "weighting",
    "propensity_a",
    "propensity_b",
    "block_size",
    "dense_scale",
    "pair_weights",
    "text_column",
    "label_column",
    "label_separator",
    "id_column",
    "weight_column",
    "data_format",
)
# Only as separate words: text in quotes, or in a path, is the user's.
_WORD = re.compile(rf"(?<![\w/.'\"=-])({'|'.join(_PARAMETERS)})(?![\w/.'\"-])")


def in_flags(message: str) -> str:
    """Return the message with flags instead of parameters."""
    for phrase, flag in _PHRASES.items():
        message = message.replace(phrase, flag)
    message = re.sub("^weights: ", "--weights: ", message)
    return _WORD.sub(lambda found: "--" + found[1].replace("_", "-"), message)
