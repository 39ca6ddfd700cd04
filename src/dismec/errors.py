"""What a user may catch."""

from __future__ import annotations

__all__ = ["ClusterError", "DataError", "DismecError", "ModelError", "NotReady", "WorkerLost"]


_LONGEST = 2000  # characters: damaged files may hold values of any length


class DismecError(Exception):
    """Base of every error that dismec raises on purpose; its text is one line for a person."""

    def __init__(self, text: str = "") -> None:
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
        super().__init__(text)


class DataError(DismecError, ValueError):
    """Input data that cannot be used: says file, line and reason."""


class ModelError(DismecError):
    """A model directory that is damaged, unfinished, of another run or of a newer format."""


class ClusterError(DismecError):
    """A cluster that cannot be used: not reached, without workers, or with others than needed."""


class WorkerLost(ClusterError):  # noqa: N818  it says what has happened
    """The worker that a task ran on has gone."""


class NotReady(ClusterError):  # noqa: N818  it says how things are
    """A cluster that cannot answer at the moment, but may soon."""
