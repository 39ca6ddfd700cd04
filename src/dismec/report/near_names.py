"""Names of labels → those that may be one name in two spellings.

Names are compared by their words: letters in lower case, without white space, punctuation and the
s of a plural. Names with the same words are a *group*. Two names whose words differ by one edit (a
letter more, less or other, or two neighbors swapped) within a word of some length, after its first
letter, are a *pair*: "toffee" is not a spelling of "coffee". Digits never differ: "2018 in film" is
not a spelling of "2019 in film".

Pairs are found without comparing all with all: each name is entered under all that remains of it
when one letter is deleted, and two names that are one edit apart meet under one of these entries.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

__all__ = ["one_edit_apart", "same_words", "words_of"]

_LEAST_LETTERS = 6  # of a word within which an edit counts
_LONGEST = 100  # characters of the words in which edits are looked for
# What is between two digits keeps them apart: 1.5 is not 15. The signs of C# and C++ are no
# punctuation here.
_BETWEEN_DIGITS = re.compile(r"(?<=\d)[\W_]+(?=\d)")
_BREAKS = re.compile(r"(?:[^\w#+.]|_|(?<!\d)\.|\.(?!\d))+")
_LETTERS = re.compile(rf"[^\W\d_]{{{_LEAST_LETTERS},}}")


def words_of(name: str) -> str:
    """The words of a name, with a blank between them; empty if there are none."""
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
    """Groups of places whose words are the same, however they are parted by blanks."""
    groups: dict[str, list[int]] = defaultdict(list)
    for place, text in enumerate(words):
        if text:
            groups[text.replace(" ", "")].append(place)
    return [places for places in groups.values() if len(places) > 1]


def one_edit_apart(words: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of places whose words differ by one edit, the smaller place first.

    Places with the same words as an earlier one are left out.
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
    # Equal hashes bring the candidates together; whether they are one edit apart is looked at.
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
    """The text, and what remains of it without one letter of a long word but its first."""
    yield text
    for word in _LETTERS.finditer(text):
        for place in range(word.start() + 1, word.end()):
            yield text[:place] + text[place + 1 :]


def _is_one_edit(one: str, other: str) -> bool:
    """Whether two texts differ by one letter more, less or other, or by two swapped neighbors."""
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
