"""Training texts → a few that the model keeps, for people to try it on."""

from __future__ import annotations

from collections.abc import Iterable

from dismec.data.corpus import TextBatch

__all__ = ["EXAMPLES", "example_texts"]

EXAMPLES = 5  # that a model keeps
_SHORTEST, _LONGEST = 20, 2000  # characters of a text that is taken
_KEPT = 300  # characters that are kept of one


def example_texts(batches: Iterable[TextBatch]) -> tuple[str, ...]:
    """The beginnings of the first texts of a file, no two of which share a label.

    Nothing beyond the first batch is read. The same file gives the same texts.
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
    """The text, cut after a word if it is long."""
    if len(text) <= _KEPT:
        return text
    kept = text[: _KEPT + 1].rsplit(maxsplit=1)[0]
    return kept if len(kept) <= _KEPT else kept[:_KEPT]
