"""Former names of keys in JSON output, which version 0.3 will remove."""

from __future__ import annotations

from typing import Any

_FORMER = {
    "features per row": "features a row",
    "labels per row": "labels a row",
    "rows per label": "rows a label",
    "characters per row": "characters a row",
    "bytes per weight": "bytes a weight",
    "weights per classifier": "weights a classifier",
    "passes per label": "passes a label",
    "steps per label": "steps a label",
    "working set per label": "working set a label",
    "ms per row": "ms a row",
    "labels that occur together": "labels that come together",
    "labels used as features": "labels that inform others",
}


def with_former_keys(value: Any) -> Any:
    """Return a copy of a JSON value with each renamed key also under its former name."""
    if isinstance(value, list):
        return [with_former_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: with_former_keys(item) for key, item in value.items()}
    return found | {old: found[new] for new, old in _FORMER.items() if new in found}
