"""Label names → those that may be two spellings of one name.

Names are compared by their words: lowercase letters, without white space, punctuation and the
plural s. Names with the same words form a *group*. Two names form a *pair* if their words differ by
one edit (one letter inserted, deleted or replaced, or two adjacent letters swapped) within a
sufficiently long word, after its first letter: "toffee" is not a spelling of "coffee". Digits never
differ: "2018 in film" is not a spelling of "2019 in film".

Pairs are found without comparing all names with each other: each name is indexed under every string
that results from deleting one of its letters, and two names that are one edit apart share one of
these entries.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

__all__ = ["one_edit_apart", "same_words", "words_of"]

_LEAST_LETTERS = 6  # minimum length of a word in which an edit counts
_LONGEST = 100  # maximum length of the words that are searched for edits
# Separators between digits are kept: 1.5 is not 15. The signs of C# and C++ are not punctuation
# here.
_BETWEEN_DIGITS = re.compile(r"(?<=\d)[\W_]+(?=\d)")
_BREAKS = re.compile(r"(?:[^\w#+.]|_|(?<!\d)\.|\.(?!\d))+")
_LETTERS = re.compile(rf"[^\W\d_]{{{_LEAST_LETTERS},}}")


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
    order = np.argsort(np.array(keys, np.int64), kind="stable")
    sorted_keys = np.array(keys, np.int64)[order]
    sorted_places = np.array(places, np.int64)[order]
    starts = np.flatnonzero(np.append(True, sorted_keys[1:] != sorted_keys[:-1]))
    ends = np.append(starts[1:], len(sorted_keys))
    found = set()
    for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
        meeting = np.unique(sorted_places[start:end]).tolist()
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
