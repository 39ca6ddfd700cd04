"""How parameters of a model were chosen: fields in its manifest → sentences for people.

If a value was chosen or learned on rows that were not used for training, the parameters in the
manifest say so:

- ``C_auto``, ``dense_scale_auto``: {"metric", "rows"[, "data", "judged_by", "label_share"]}
- ``delta_auto`` and ``calibrated``: {"rows"[, "data"]}
- ``delta_effect``: {"before", "after"}, each {"P@1": percent, …}, and "at", the delta before
- ``refine_effect``: {"before", "after"}, metrics without and with labels as features, the "margin"
  (half of a 95 % interval) of the gain in the last of them, and "rows"
- ``sqrt_effect``: the "gain" of square roots in points of a "metric", with the "margin" of half a
  95 % interval, and whether they are "used"
- ``label_texts``: the first digits of the SHA-256 of the "data", and how many labels "without_rows"
  have only their text; ``label_texts_effect``: the "weight" of matches with the texts, None if they
  do not help labels with rows, and their "gain" in points of a "metric" with its "margin";
  ``label_texts_curve``: the slope and intercept of the probabilities of labels without rows
- ``row_weights``: {"least", "most", "sum"} of the row weights, if there were any
- ``pair_weights``: {"pairs", "left_out"}, how many (row, label) pairs had a weight other than 1,
  and how many of these had weight 0, if there were any

"rows" is the number of rows, and "data" the first sixteen digits of the fingerprint of the rows
given for this purpose. Without "data", they were held out from the training data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.counts import counted

_KEYS = (
    *("C_auto", "delta_auto", "delta_effect", "refine_effect", "calibrated"),
    *("sqrt_effect", "dense_scale_auto"),
    *("label_texts", "label_texts_effect"),
    *("row_weights", "pair_weights"),
)


def shown(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a manifest, with sentences that say how values were chosen."""
    return {key: sentence(key, v) if key in _KEYS else v for key, v in params.items()}


def sentence(key: str, value: Any) -> Any:
    """Return how a value was chosen as a sentence; return unexpected values unchanged."""
    if not isinstance(value, dict):
        return value
    try:
        return _sentence(key, value)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return value


def _sentence(key: str, value: dict[str, Any]) -> str:
    if key == "delta_effect":
        after = ", ".join(f"{name} {p:.2f}" for name, p in value["after"].items())
        return (
            f"{after} (at {value['at']}: {', '.join(f'{p:.2f}' for p in value['before'].values())})"
        )
    if key == "label_texts":
        return f"used for {counted(value['without_rows'], 'label')} without rows, and tried for all"
    if key == "label_texts_effect":
        gain = f"{value['gain']:+.2f} ± {value['margin']:.2f} points of {value['metric']}"
        used = "not used" if value["weight"] is None else f"weight {value['weight']:g}"
        return f"{gain}, {used}"
    if key == "sqrt_effect":
        gain = f"{value['gain']:+.2f} ± {value['margin']:.2f} points of {value['metric']}"
        return f"{gain}, {'used' if value['used'] else 'not used'}"
    if key == "row_weights":
        return f"from {value['least']:g} to {value['most']:g}, {value['sum']:g} in all"
    if key == "pair_weights":
        return f"{counted(value['pairs'], 'pair')}, {counted(value['left_out'], 'pair')} left out"
    rows, data = value["rows"], value.get("data")
    if key == "refine_effect":
        gains = (f"{value['after'][key] - p:+.2f}" for key, p in value["before"].items())
        gain = f"{'/'.join(gains)} ± {value['margin']:.2f} points"
        return f"{'/'.join(value['after'])} {gain} on {rows} held-out rows"
    judged = f"on {rows} held-out rows" if data is None else f"on {rows} rows of data {data}"
    if key in ("C_auto", "dense_scale_auto"):
        sample = f", with 1 in {value['label_share']} labels" if "label_share" in value else ""
        return f"by {value['metric']} {judged}{sample}"
    return judged


def history_entry(action: str, **facts: Any) -> dict[str, Any]:
    """Describe a change of a model's labels, made now, for the history in its manifest."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"action": action, **facts, "dismec": version("dismec"), "time": now}


def parse_ranges(numbers: str) -> Iterator[int]:
    """Yield the numbers in a text such as "3-5,8", from an entry of the history."""
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def format_ranges(labels: npt.NDArray[np.int64]) -> str:
    """Return ascending numbers as a text such as "3-5,8"."""
    runs = np.split(labels, np.flatnonzero(np.diff(labels) > 1) + 1)
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
