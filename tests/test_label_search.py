"""Searching labels by parts of their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dismec.data.names import Names, pack_names
from dismec.serve.label_filter import LabelSearch

names = st.lists(st.text("aAbß\u0130 é\n😀", max_size=4), max_size=12)
parts = st.text("aAbßé s😀", max_size=3)


def packed(given):
    return Names(*pack_names(given))


def by_hand(given, part):
    """Return equal names first, then those that begin with it, then others; each in order."""
    folded, wanted = [name.casefold() for name in given], part.strip().casefold()
    equal = [i for i, name in enumerate(folded) if name == wanted]
    begin = [i for i, name in enumerate(folded) if name.startswith(wanted)]
    inside = [i for i, name in enumerate(folded) if wanted in name]
    return list(dict.fromkeys([*equal, *begin, *inside]))


@given(names, parts, st.integers(1, 20))
def test_search_equals_a_scan_of_all_names(given, part, limit):
    search = LabelSearch(packed(given), len(given))
    assert search.find(part, limit) == by_hand(given, part)[:limit]


@given(names, parts)
def test_labels_that_begin_with_something_are_found_in_order(given, part):
    search = LabelSearch(packed(given), len(given))
    wanted = part.strip().casefold()
    expected = [i for i, name in enumerate(given) if name.casefold().startswith(wanted)]
    assert list(search.beginning_with(part)) == expected
    numbered = LabelSearch(None, 40)
    assert list(numbered.beginning_with("3 ")) == [3, *range(30, 40)]
    assert list(numbered.beginning_with("")) == list(range(40))


@given(st.integers(0, 1200), st.integers(0, 1500), st.integers(1, 50))
def test_labels_without_names_are_found_by_their_numbers(n_labels, number, limit):
    search = LabelSearch(None, n_labels)
    expected = [i for i in range(n_labels) if str(i).startswith(str(number))]
    assert search.find(str(number), limit) == expected[:limit]
    assert search.find("", limit) == list(range(min(limit, n_labels)))


@pytest.mark.parametrize("part", ["x", "-1", "01", "9" * 5000, "١"])
def test_only_numbers_find_unnamed_labels(part):
    assert LabelSearch(None, 100).find(part, 5) == []


class Counting(LabelSearch):
    """Counts the matches that a search looks at."""

    seen = 0

    def _holding(self, pattern):
        for label in super()._holding(pattern):
            self.seen += 1
            yield label


@pytest.mark.parametrize(
    ("part", "found", "seen"),
    [("NUMBER 4999 ", [4999], 1), ("of", range(10), 10), ("nowhere", [], 0), ("l", range(10), 10)],
)
def test_search_looks_at_no_more_names_than_it_returns(part, found, seen):
    search = Counting(packed([f"label number {i} of many" for i in range(5000)]), 5000)
    assert search.find(part, 10) == list(found)
    assert search.seen == seen
