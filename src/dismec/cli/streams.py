"""Standard output and error, on which nothing is printed that a terminal would act on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from dismec.data.printable import printable

__all__ = ["printable_streams", "unfiltered"]


class _PrintableStream:
    """A text stream that shows control characters instead of passing them on."""

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        self.unfiltered.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # click would write to it, past the filter
            raise AttributeError(name)
        return getattr(self.unfiltered, name)


@contextmanager
def printable_streams() -> Iterator[None]:
    """Have all that is printed go through the filter."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    ours = {name: _PrintableStream(stream) for name, stream in before.items()}
    for name, stream in ours.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in ours.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, before[name])


def unfiltered(stream: TextIO) -> TextIO:
    """The stream behind the filter, for bytes of files and for the colours of tables."""
    return stream.unfiltered if isinstance(stream, _PrintableStream) else stream
