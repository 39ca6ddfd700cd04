"""What commands print for people: progress, results, cluster messages. The only user of rich.

Standard output and error are filtered: control characters do not reach the terminal.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from dismec.data.counts import counted
from dismec.data.printable import printable
from dismec.training.params import WorkProgress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from dismec.data.dataset import Dataset
    from dismec.model.explanation import Contribution, Explanation, Reason
    from dismec.model.model import Model
    from dismec.training.params import Progress


_WIDE = 200  # characters
_SILENT_SECONDS = 10.0  # between two lines of progress in a log
_ESTIMATED_SECONDS = 1e6  # of training from which the remaining time is estimated: all


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


@contextmanager
def shown_progress(quiet: bool, what: str) -> Iterator[Progress | None]:
    """Show a bar on a terminal, occasional lines in a log, nothing if quiet."""
    if quiet:
        yield None
        return
    from rich import progress
    from rich.console import Console

    is_terminal = sys.stderr.isatty()
    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[done]:,} of {task.fields[labels]:,} labels"),
        progress.TimeRemainingColumn(),
        console=Console(file=unfiltered(sys.stderr)),
        transient=True,
        speed_estimate_period=_ESTIMATED_SECONDS,
        disable=not is_terminal,
    ) as bar:
        yield _ShownProgress(bar, what, _SILENT_SECONDS if not is_terminal else math.inf)


class _ShownProgress(WorkProgress):
    """Updates a bar, and prints a line each time `every` seconds have passed.

    The remaining time is estimated from the work done, not from labels: frequent labels come first,
    and one of them may take as long as a hundred others.
    """

    def __init__(self, bar: Bar, what: str, every: float) -> None:
        self._bar, self._what, self._every = bar, what, every
        self._task = bar.add_task(what, total=1.0, done=0, labels=0)
        self._last: float | None = None

    def update(self, done: int, total: int, share: float) -> None:
        self._bar.update(self._task, completed=share, done=done, labels=total)
        if math.isinf(self._every):
            return
        now = time.perf_counter()
        if self._last is None:
            self._last = now
            if done:
                print_message(f"{self._what}: resuming after {done:,} of {counted(total, 'label')}")
        if now - self._last < self._every and done < total:
            return
        self._last = now
        left = self._bar.tasks[self._task].time_remaining
        shown = f", {timedelta(seconds=round(left))} left" if left else ""
        print_message(f"{self._what}: {done:,} of {counted(total, 'label')}{shown}")


def print_message(line: str) -> None:
    """Print a message, separate from a command's results."""
    click.echo(printable(line), err=True)  # a progress bar replaces the stream


def trained_facts(model: Model, path: Path, seconds: float) -> dict[str, Any]:
    """Return the facts that `print_trained` and `print_unsolved` print, for JSON.

    Includes what was learned during training, as stored in its manifest.
    """
    stats = model.manifest.stats
    learned = ("C_auto", "delta_auto", "delta_effect", "calibrated", "refine_effect", "sqrt_effect")
    return {
        "model": str(path),
        "labels": model.n_labels,
        "weights": model.nnz,
        "precision": model.precision,
        "bytes": sum(receipt.bytes for receipt in model.manifest.files),
        "seconds": round(seconds, 3),
        "labels_not_solved": stats.unsolved if stats else 0,
        "refined": model.manifest.refined is not None,
        **{key: model.params[key] for key in ("C", "delta", *learned) if key in model.params},
    }


def print_trained(model: Model, path: Path, seconds: float) -> None:
    """Print one line about a saved model."""
    facts = trained_facts(model, path, seconds)
    print_message(
        f"{path}: {counted(model.n_labels, 'label')}, {counted(model.nnz, 'weight')} in "
        f"{model.precision}, "
        f"{facts['bytes'] / 1e6:,.1f} MB; {seconds:.1f} s"
    )


def print_unsolved(model: Model) -> None:
    """Print a line if some labels were not solved to the tolerance."""
    stats = model.manifest.stats
    if stats and stats.unsolved:
        print_message(
            f"dismec: {stats.unsolved:,} of {counted(model.n_labels, 'label')} stopped before the "
            "tolerance was reached; their weights are the best found"
        )


def print_unknown(model: Model, dataset: Dataset) -> None:
    """Print a line if DATA has labels that the model does not know."""
    import numpy as np

    counts = np.bincount(dataset.Y.indices, minlength=dataset.Y.shape[1])
    trained = np.zeros(len(counts), np.bool_)
    n = min(len(counts), model.n_labels)
    trained[:n] = model.label_counts[:n] > 0
    unknown = np.count_nonzero(~trained & (counts > 0))
    if unknown:
        print_message(
            f"{unknown:,} of the {np.count_nonzero(counts):,} labels of DATA are unknown to the "
            f"model and count as missed: {counts[~trained].sum() / counts.sum():.1%} of all"
        )


def print_metrics(result: dict[str, float], ks: tuple[int, ...]) -> None:
    """Print a table with a row per metric and a column per k."""
    names = dict.fromkeys(key.split("@")[0] for key in result if "@" in key)
    rows = [[name, *(f"{result[f'{name}@{k}']:.2f}" for k in ks)] for name in names]
    print_table(["%", *(f"@{k}" for k in ks)], rows, counted(int(result["rows"]), "row"))
    others = [name for name in result if "@" not in name and name != "rows"]
    print_paragraphs(f"{name} {result[name]:.2f} %" for name in others)


def _console(*, in_full: bool = False) -> Console:
    """Create a console that ignores markup. Text goes through `printable`.

    A log has no fixed width: with `in_full`, wide tables are printed completely there.
    """
    from rich.console import Console

    file = unfiltered(sys.stdout)  # colors are control characters, too
    console = Console(highlight=False, markup=False, emoji=False, file=file)
    if in_full and not console.is_terminal:
        console.width = _WIDE
    return console


def print_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str | None = None,
    *,
    left: int = 1,
    best: int | None = None,
) -> None:
    """Print a table with the first `left` columns left-aligned; with 0, none is shortened.

    Row number `best` is highlighted. Nothing is printed without rows.
    """
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(*heads, caption=None if caption is None else printable(caption))
    if left:
        table.columns[0].max_width = 30  # names may be long, but numbers must be visible
    for place, column in enumerate(table.columns):
        column.justify = "left" if place < left else "right"
        column.no_wrap = place == 0 or not left
    for number, row in enumerate(rows):
        # Not marked by font weight alone: a log has no bold letters.
        shown = [f"* {row[0]}", *row[1:]] if number == best else row
        cells = [Text(printable(cell)) for cell in shown]
        table.add_row(*cells, style="bold" if number == best else None)
    _console(in_full=not left).print(table, crop=bool(left))


def print_level_table(levels: Sequence[dict[str, Any]], ks: Sequence[int]) -> None:
    """Print a table with one row per level."""
    counts = ("level", "nodes", "labels")
    found = [f"{name}@{k}" for name in ("hP", "hR") for k in ks if f"{name}@{k}" in levels[0]]
    print_table(
        [*counts, *found],
        [
            [*(f"{entry[key]:,}" for key in counts), *(f"{entry[key]:.2f}" for key in found)]
            for entry in levels
        ],
        "By level of the hierarchy" + (", %" if found else ""),
        left=0,
    )


def print_pairs(lines: Mapping[str, str]) -> None:
    """Print keys and values in two columns; a value may have several lines."""
    console = _console()
    width = max(map(len, lines))
    for key, value in lines.items():
        text = printable(value).replace("\n", f"\n{'':{width}}  ")
        console.print(f"{key:{width}}  {text}", soft_wrap=True)


def print_paragraphs(lines: Iterable[str]) -> None:
    """Print lines, wrapped to the width of the terminal."""
    console = _console()
    for line in lines:
        console.print(printable(line))


def print_explanation(
    explanation: Explanation,
    text: str | None,
    words: list[tuple[int, int, float]] | None,
    limit: int,
) -> None:
    """Print what contributed to a score: the text with colored words, if given, and a table."""
    from rich.table import Table
    from rich.text import Text

    console = _console()
    named = printable(explanation.name or f"label {explanation.label}", one_line=True)
    line = Text(named, style="bold")
    line.append(f"  score {explanation.score:.3f}", style="default")
    if explanation.probability is not None:
        line.append(f", probability {100 * explanation.probability:.1f} %", style="default")
    console.print(line)
    if text is not None and words:
        shown, reached = Text(), 0
        most = max(abs(part) for _, _, part in words) or 1.0
        for begin, end, part in words:
            style = ""
            if abs(part) >= most / 50:
                strength = "bold " if abs(part) > most / 4 else ""
                # Underlined or not: not everybody can distinguish colors.
                style = f"{strength}underline blue" if part > 0 else f"{strength}red"
            shown.append(printable(text[reached:begin]))
            shown.append(printable(text[begin:end]), style)
            reached = end
        shown.append(printable(text[reached:]))
        console.print(shown, soft_wrap=True)
    table = Table("feature", "value", "weight", "adds")
    for column in table.columns[1:]:
        column.justify = "right"

    named_parts: list[tuple[str, Contribution | Reason]] = [
        *((part.term or str(part.feature), part) for part in explanation.terms[:limit]),
        *((f"label {part.name or part.label}", part) for part in explanation.reasons[:limit]),
    ]
    for name, entry in named_parts:
        table.add_row(
            Text(printable(name, one_line=True)),
            f"{entry.value:.3f}",
            f"{entry.weight:+.3f}",
            Text(f"{entry.contribution:+.3f}", style="blue" if entry.contribution > 0 else "red"),
        )
    left_out: dict[str, Sequence[Contribution | Reason]]
    left_out = {"feature": explanation.terms[limit:], "label": explanation.reasons[limit:]}
    for what, rest in left_out.items():
        if rest:
            total = f"{sum(entry.contribution for entry in rest):+.3f}"
            table.add_row(counted(len(rest), f"more {what}"), "", "", total)
    if explanation.embedding is not None:
        table.add_row("embedding", "", "", f"{explanation.embedding:+.3f}")
    table.add_row("bias", "", "", f"{explanation.bias:+.3f}")
    console.print(table)
    if explanation.own_text is not None:
        console.print(f"the text about this label adds {explanation.own_text:+.3f} of this")
    for reason in explanation.reasons:
        speaking = [term for term in reason.terms if term.contribution > 0]
        if reason.contribution > 0 and speaking:
            why = ", ".join(term.term or f"feature {term.feature}" for term in speaking)
            because = f"because {reason.name or reason.label} is likely: {why}"
            console.print(Text(printable(because, one_line=True)))


class _ClusterLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_message(f"dismec: {record.getMessage()}")


@contextmanager
def cluster_messages(cluster: str | None, quiet: bool) -> Iterator[None]:
    """Print the library's messages about a cluster, but not Dask's."""
    if cluster is None:
        yield
        return
    from dismec.cluster import client  # noqa: F401  sets the levels of Dask's loggers

    logger, handler = logging.getLogger("dismec"), _ClusterLines()
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(_is_shown)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _is_shown(record: logging.LogRecord) -> bool:
    # Dask stops waiting for a dead worker in this way.
    return not (record.exc_info and getattr(record.exc_info[0], "__name__", "") == "AllExit")
