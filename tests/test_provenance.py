"""How values were chosen: fields in the manifest are shown as sentences."""

from __future__ import annotations

import pytest

from dismec.model.provenance import sentence, shown

CHOSEN = [
    ("delta_auto", {"rows": 300}, "on 300 held-out rows"),
    (
        "calibrated",
        {"rows": 12, "data": "0123456789abcdef"},
        "on 12 rows of data 0123456789abcdef",
    ),
    (
        "C_auto",
        {"metric": "nDCG@5", "rows": 70},
        "by nDCG@5 on 70 held-out rows",
    ),
    (
        "delta_effect",
        {"at": 0.01, "before": {"P@1": 80.25, "P@3": 60.5}, "after": {"P@1": 80.2, "P@3": 60.75}},
        "P@1 80.20, P@3 60.75 (at 0.01: 80.25, 60.50)",
    ),
]


@pytest.mark.parametrize(("key", "fields", "text"), CHOSEN)
def test_fields_are_shown_as_sentences(key, fields, text):
    assert sentence(key, fields) == text


def test_other_parameters_are_shown_as_they_are():
    params = {"C": 1.0, "delta": 0.01, "C_table": [{"C": 1.0}], "delta_auto": {"rows": 3}}
    assert shown(params) == {**params, "delta_auto": "on 3 held-out rows"}
