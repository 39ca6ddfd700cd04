"""Pick a few training texts that the model keeps, for people to try it on."""

from __future__ import annotations

from collections.abc import Iterable

from dismec.data.corpus import TextBatch

__all__ = ["EXAMPLES", "example_texts"]

EXAMPLES = 5  # number of texts that a model keeps
_SHORTEST, _LONGEST = 20, 2000  # range of characters in a text that qualifies
_KEPT = 300  # characters kept of each text


def example_texts(batches: Iterable[TextBatch]) -> tuple[str, ...]:
    """Return the beginnings of the first texts of a file, no two of which share a label.

    Only the first batch is read, so the same file always gives the same texts.
    """
    found: list[str] = []
    used: set[str] = set()
    for batch in batches:
        for text, labels in zip(batch.texts, batch.labels, strict=True):
            fits = _SHORTEST <= len(text.strip()) <= _LONGEST
            if fits and labels and used.isdisjoint(labels) and len(found) < EXAMPLES:
                used.update(labels)
                found.append(_opening_words(text.strip()))
        break
    return tuple(found)


def _opening_words(text: str) -> str:
    """Return the text, cut after a word if it is long."""
    if len(text) <= _KEPT:
        return text
    kept = text[: _KEPT + 1].rsplit(maxsplit=1)[0]
    return kept if len(kept) <= _KEPT else kept[:_KEPT]
