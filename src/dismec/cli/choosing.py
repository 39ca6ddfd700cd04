"""Options that restrict the labels a command may predict."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dismec.cli.console import print_message
from dismec.cli.options import PATH, F
from dismec.data.counts import counted
from dismec.errors import DataError

if TYPE_CHECKING:
    from dismec.model.allowed import Allowed
    from dismec.model.topk_model import TopkModel

__all__ = ["LabelChoice", "choice_options", "print_not_allowed"]


@dataclass(frozen=True)
class LabelChoice:
    """Files of labels to predict exclusively, or to exclude."""

    only: Path | None
    exclude: Path | None

    def among(self, model: TopkModel) -> Allowed | None:
        """Return the labels that the model may predict; None for all."""
        from dismec.data.names import load_names

        given = {"only": self.only, "exclude": self.exclude}
        files = {what: path for what, path in given.items() if path is not None}
        if not files:
            return None
        found: dict[str, list[int]] = {}
        for what, path in files.items():
            found[what] = []
            for line, name in enumerate(load_names(path, blanks=True), 1):
                if not name:
                    continue
                try:
                    found[what].append(model.find_label(name))
                except DataError as error:
                    raise DataError(f"{path}:{line}: {error}") from None
        return model.select_labels(**found)


def choice_options(command: F) -> F:
    """Add --only and --exclude, passed to the command as `choice`."""

    @click.option(
        "--only",
        type=PATH,
        metavar="FILE",
        help="Predict only the labels in this file: names or numbers, one per line.",
    )
    @click.option(
        "--exclude",
        type=PATH,
        metavar="FILE",
        help="Never predict the labels in this file: names or numbers, one per line.",
    )
    @wraps(command)
    def with_choice(*args: Any, only: Path | None, exclude: Path | None, **rest: Any) -> Any:
        return command(*args, choice=LabelChoice(only, exclude), **rest)

    return cast(F, with_choice)


def print_not_allowed(allowed: Allowed, Y: Any) -> None:
    """Print how many true labels are ignored because they are not allowed."""
    kept, left_out = allowed.filter(Y)
    if left_out:
        without = int((kept.indptr[1:] == kept.indptr[:-1]).sum())
        of = f"{left_out:,} of {left_out + kept.nnz:,} true labels are not allowed and do not count"
        print_message(
            f"{of}; {without:,} of {counted(kept.shape[0], 'row')} have no true label left"
        )
