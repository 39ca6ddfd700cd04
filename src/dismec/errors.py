"""The errors that callers may catch."""

from __future__ import annotations

__all__ = ["ClusterError", "DataError", "DismecError", "ModelError"]


_LONGEST = 2000  # characters: damaged files may hold values of any length


class DismecError(Exception):
    """Base class of all errors that dismec raises on purpose; the message is one readable line."""

    def __init__(self, text: str = "") -> None:
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
        super().__init__(text)


class DataError(DismecError, ValueError):
    """Input data that cannot be used; the message gives file, line and reason."""


class ModelError(DismecError):
    """A model directory that is damaged, unfinished, from another run or in a newer format."""


class ClusterError(DismecError):
    """A cluster that cannot be used: unreachable, without workers, or with unsuitable ones."""
