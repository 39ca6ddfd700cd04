from __future__ import annotations

import numpy as np
import pytest

from conftest import random_problem
from dismec import DataError
from dismec.training.recipe import fit


def test_a_model_is_evaluated_on_any_matrix_of_labels():
    X, Y = random_problem(rows=60, labels=4)
    model = fit(X, Y)
    expected = model.evaluate(X, Y)
    assert model.evaluate(X, Y.toarray().tolist()) == expected
    for bad, reason in [(None, "Y is 0-d"), (np.ones(60), "Y is 1-d"), (Y[:5], "5")]:
        with pytest.raises(DataError, match=reason):
            model.evaluate(X, bad)
    with pytest.raises(DataError, match="ks is empty"):
        model.evaluate(X, Y, ())
    assert model.evaluate(X, Y[:, :0])["P@1"] == 0
