"""Labels of rows, and their names → frequent, rare, similar and co-occurring labels.

Lists are short, but the counts that come with them cover everything. The cost is bounded: names are
compared through an index, row sets of labels by sums of random
numbers, and co-occurring pairs are counted only among the most frequent labels.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.data.files import StrPath, whole_file
from dismec.data.matrices import without_unused
from dismec.model.model import Model
from dismec.model.refined_transform import RefinedTransform
from dismec.report.duplicates import groups_of_equals

_LEAST_LETTERS = 6  # minimum length of a word in which an edit counts
_LONGEST = 100  # maximum length of the words that are searched for edits
# Separators between digits are kept: 1.5 is not 15. The signs of C# and C++ are not punctuation
# here.
_BETWEEN_DIGITS = re.compile(r"(?<=\d)[\W_]+(?=\d)")
_BREAKS = re.compile(r"(?:[^\w#+.]|_|(?<!\d)\.|\.(?!\d))+")
_LETTERS = re.compile(rf"[^\W\d_]{{{_LEAST_LETTERS},}}")

LISTED = 20  # labels, groups or pairs that are listed
_LEAST_TOGETHER = 5  # minimum number of common rows of a co-occurring pair
_MOST_LABELS = 2000  # labels whose pairs are counted
_MOST_MEETINGS = 2 * 10**8  # co-occurrences of two labels, over all rows
_MOST_NAMES = 200_000  # names that are searched for single edits

_Ints = npt.NDArray[np.int64]


def describe_labels(Y: sp.csr_array, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Describe the labels of rows (Y: n_rows × n_labels, every stored entry is 1), by name.

    Without names, labels are given by number, and only labels that occur in some row are described:
    a header may declare any number of others.

    "most frequent labels" with their "rows"; "rare labels": how many have "1 row", with "examples";
    "similar names" (only with names), groups with the same words and pairs one edit apart; "labels
    with the same rows", with at least 2 rows; "labels that occur together": "pairs" by decreasing
    Jaccard index, among the most frequent labels, whose number is "of labels"; and "all labels",
    one list per column, the most frequent first.
    """
    if names is None:
        Y, labels = without_unused(Y)
    else:
        labels = np.arange(Y.shape[1])
    counts = np.bincount(Y.indices, minlength=Y.shape[1])
    ranked = np.argsort(-counts, kind="stable")
    once = np.flatnonzero(counts == 1)
    shown = [str(label) for label in labels.tolist()] if names is None else names
    return {
        "most frequent labels": [
            {"name": shown[label], "rows": int(counts[label])}
            for label in ranked[: min(LISTED, np.count_nonzero(counts))]
        ],
        "rare labels": {"1 row": len(once), "examples": [shown[i] for i in once[:LISTED]]},
        **({} if names is None else {"similar names": _similar_names(names, counts, ranked)}),
        "labels with the same rows": _same_rows(Y, shown, counts),
        "labels that occur together": _together(Y, shown, counts, ranked),
        "all labels": {
            "label": labels[ranked].tolist(),
            "name": [shown[label] for label in ranked],
            "rows": counts[ranked].tolist(),
        },
    }


def _similar_names(names: Sequence[str], counts: _Ints, ranked: _Ints) -> dict[str, Any]:
    """Return groups, then pairs, sorted by the rows of their second most frequent label."""
    labels = ranked.tolist()
    words = [words_of(names[label]) for label in labels]
    looked = words[:_MOST_NAMES]
    found: dict[str, Sequence[Sequence[int]]] = {
        "same words": same_words(words),
        "one edit": one_edit_apart(looked),
    }
    entries: list[dict[str, Any]] = [
        {
            "names": [names[labels[place]] for place in places],
            "rows": [int(counts[labels[place]]) for place in places],
            "differ by": "one letter" if kind == "one edit" else "case, spaces, signs or plural",
        }
        for kind, groups in found.items()
        for places in groups
    ]
    entries.sort(key=lambda entry: (entry["differ by"] == "one letter", -entry["rows"][1]))
    return {
        **{kind: len(groups) for kind, groups in found.items()},
        "of labels": len(looked),
        "examples": entries[:LISTED],
    }


def _same_rows(Y: sp.csr_array, names: Sequence[str], counts: _Ints) -> dict[str, Any]:
    """Find labels with the same rows: their sums of one random number per row are equal."""
    by_label: Any = cast(Any, Y).tocsc()
    several = np.flatnonzero(counts > 1)
    of_row = np.random.default_rng(0).integers(0, 2**64, Y.shape[0], dtype=np.uint64)
    whole = np.append(np.uint64(0), np.cumsum(of_row[by_label.indices], dtype=np.uint64))
    sums = whole[by_label.indptr[several + 1]] - whole[by_label.indptr[several]]
    groups = [several[group] for group in groups_of_equals(sums)]
    groups.sort(key=lambda group: (-counts[group[0]], group[0]))
    return {
        "groups": len(groups),
        "labels": sum(map(len, groups)),
        "examples": [
            {
                "names": [names[label] for label in group[:LISTED]],
                "labels": len(group),
                "rows": int(counts[group[0]]),
            }
            for group in groups[:LISTED]
        ],
    }


def _together(
    Y: sp.csr_array, names: Sequence[str], counts: _Ints, ranked: _Ints
) -> dict[str, Any]:
    """Find pairs of frequent labels that co-occur clearly more often than by chance.

    The number of rows expected by chance has a standard deviation of its square root.
    """
    frequent = ranked[:_MOST_LABELS]
    frequent = np.sort(frequent[counts[frequent] >= _LEAST_TOGETHER])
    if len(frequent) < 2:
        return {"of labels": len(frequent), "pairs": []}
    part: Any = cast(Any, Y)[:, frequent]
    while (np.diff(part.indptr).astype(np.int64) ** 2).sum() > _MOST_MEETINGS:
        frequent = np.sort(ranked[: len(frequent) // 2])
        part = cast(Any, Y)[:, frequent]
    part = part.astype(np.int32)
    met: Any = sp.coo_array(sp.triu(part.T @ part, k=1))
    enough = met.data >= _LEAST_TOGETHER
    one, other, both = frequent[met.row[enough]], frequent[met.col[enough]], met.data[enough]
    both = both.astype(np.int64)
    by_chance = counts[one] * counts[other] / Y.shape[0]
    lift = both / by_chance
    jaccard = both / (counts[one] + counts[other] - both)
    # Labels with the same rows are listed elsewhere.
    apart = np.flatnonzero((jaccard < 1) & (both > by_chance + 3 * np.sqrt(by_chance)))
    best = apart[np.lexsort((other[apart], one[apart], -both[apart], -jaccard[apart]))]
    return {
        "of labels": len(frequent),
        "pairs": [
            {
                "names": [names[one[i]], names[other[i]]],
                "rows": [int(counts[one[i]]), int(counts[other[i]])],
                "together": int(both[i]),
                "Jaccard": round(float(jaccard[i]), 4),
                "lift": round(float(lift[i]), 2),
            }
            for i in best[:LISTED].tolist()
        ],
    }


def words_of(name: str) -> str:
    """Return the words of a name, separated by spaces; empty if there are none."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    plain = _BREAKS.sub(" ", _BETWEEN_DIGITS.sub(".", plain))
    return " ".join(map(_singular, plain.split()))


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def same_words(words: Sequence[str]) -> list[list[int]]:
    """Group places with the same words, ignoring spaces."""
    groups: dict[str, list[int]] = defaultdict(list)
    for place, text in enumerate(words):
        if text:
            groups[text.replace(" ", "")].append(place)
    return [places for places in groups.values() if len(places) > 1]


def one_edit_apart(words: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of places whose words differ by one edit, the smaller place first.

    Places with the same words as an earlier one are skipped.
    """
    first: dict[str, int] = {}
    for place, text in enumerate(words):
        if text and len(text) <= _LONGEST:
            first.setdefault(text.replace(" ", ""), place)
    keys, places = [], []
    for place in first.values():
        for key in _deletions(words[place]):
            keys.append(hash(key))
            places.append(place)
    # Equal hashes only give candidates; whether they are one edit apart is checked.
    place_of = np.array(places, np.int64)
    found = set()
    for group in groups_of_equals(np.array(keys, np.int64)):
        meeting = np.unique(place_of[group]).tolist()
        for one, other in combinations(meeting, 2):
            if _is_one_edit(words[one], words[other]):
                found.add((one, other))
    return sorted(found)


def _deletions(text: str) -> Iterator[str]:
    """Yield the text, and the text without one letter (not the first) of a long word."""
    yield text
    for word in _LETTERS.finditer(text):
        for place in range(word.start() + 1, word.end()):
            yield text[:place] + text[place + 1 :]


def _is_one_edit(one: str, other: str) -> bool:
    """Return whether one insertion, deletion, replacement or swap turns one text into the other."""
    if len(one) > len(other):
        one, other = other, one
    start = 0
    while start < len(one) and one[start] == other[start]:
        start += 1
    if len(one) < len(other):
        return one[start:] == other[start + 1 :] and other[start].isalpha()
    rest, changed = one[start:], other[start:]
    if not rest:
        return False
    swapped = rest[:2] == changed[1::-1] and rest[2:] == changed[2:] and rest[:2].isalpha()
    return swapped or (rest[1:] == changed[1:] and (rest[0] + changed[0]).isalpha())


def strongest_pairs(model: Model, n_pairs: int = 10) -> dict[str, list[dict[str, Any]]]:
    """Return the pairs of labels with the largest weights, at most `n_pairs` "for" and "against".

    Pairs of a label with itself are left out. A model that is not refined has no pairs.
    """
    transform = model.transform
    if not isinstance(transform, RefinedTransform):
        return {"for": [], "against": []}
    n_features, found = model.n_features, []
    for shard in model.shards:
        weights: Any = shard.unpack()
        part: Any = sp.coo_array(weights[:, n_features : transform.first_dense])
        of = shard.labels[shard.label_starts[:-1]][part.row]  # the first label that shares it
        informing = transform.informing[part.col]
        others = of != informing
        found.append((part.data[others], of[others], informing[others]))
    weight, label, informing = (np.concatenate(column) for column in zip(*found, strict=True))

    def name_of(label: int) -> str | int:
        return int(label) if model.names is None else model.names[label]

    def listed(order: Any) -> list[dict[str, Any]]:
        return [
            {
                "label": name_of(label[i]),
                "informed by": name_of(informing[i]),
                "weight": round(float(weight[i]), 4),
            }
            for i in order
        ]

    order = np.lexsort((informing, label, -weight))
    pros = [i for i in order[:n_pairs] if weight[i] > 0]
    cons = [i for i in order[::-1][:n_pairs] if weight[i] < 0]
    return {"for": listed(pros), "against": listed(cons)}


def write_label_csv(target: StrPath, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of equal length as UTF-8; None becomes an empty field; quoted as needed."""
    with whole_file(target) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))
        text.detach()
