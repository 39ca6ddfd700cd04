"""Standard output and error without control characters for the terminal."""

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
        if name == "buffer":  # click would bypass the filter through it
            raise AttributeError(name)
        return getattr(self.unfiltered, name)


@contextmanager
def printable_streams() -> Iterator[None]:
    """Filter everything that is printed within the context."""
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
    """Return the stream behind the filter, for bytes of files and for the colors of tables."""
    return stream.unfiltered if isinstance(stream, _PrintableStream) else stream
