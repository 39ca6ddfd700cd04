"""The errors that callers may catch, and the places that their messages begin with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST = 2000  # characters: damaged files may hold values of any length


class DismecError(Exception):
    """Base class of all errors that dismec raises on purpose; the message is one readable line.

    `parameter` is what a caller may pass to avoid the error, such as ``overwrite=True``. It is part
    of the message; the command line prints `text` and the option of this name instead.
    """

    def __init__(self, text: str = "", parameter: str = "") -> None:
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
        super().__init__(f"{text} ({parameter})" if parameter else text)
        self.text, self.parameter = text, parameter


class DataError(DismecError, ValueError):
    """Input data that cannot be used; the message gives file, line and reason."""


class ModelError(DismecError):
    """A model directory that is damaged, unfinished, from another run or of another version."""


class ClusterError(DismecError):
    """A cluster that cannot be used: unreachable, without workers, or with unsuitable ones."""


@contextmanager
def located(where: object, raises: type[DismecError], *kinds: type[Exception]) -> Iterator[None]:
    """Put `where` before errors of these kinds, which become `raises`; by default only of that."""
    caught = kinds or (raises,)
    try:
        yield
    except caught as error:
        raise raises(f"{where}: {error}") from None
