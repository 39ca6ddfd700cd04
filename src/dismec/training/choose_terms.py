"""Choose which terms of texts are features: those that rank the labels of held-out texts best.

Words are tried first, at several C. At the best of these, more terms are added one kind at a time.
They make training slower, so they are kept only if the held-out texts are ranked better by more
than half of the 95 % interval's half-width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from shutil import rmtree
from typing import Any

from dismec.cpu import thread_count
from dismec.data.corpus import Texts
from dismec.data.files import StrPath
from dismec.data.mixed import sparse_part
from dismec.data.text_format import TextFormat
from dismec.data.training_file import TrainingData
from dismec.features.encoder import Encoder
from dismec.features.text_rows import Log
from dismec.features.vocabulary import TextParams
from dismec.model.manifest import ENCODED, STAGE
from dismec.training.choose_c import ChoiceOfC, Found, Trials, difference_margin, few_rows, peak
from dismec.training.execute import Executor, Store
from dismec.training.job import Job
from dismec.training.params import TrainOptions
from dismec.training.resume import check_output, earlier_terms
from dismec.training.split import Validation
from dismec.training.texts import texts_read

# More terms, and about how many times as many entries rows have with them.
_MORE: dict[str, tuple[dict[str, Any], float]] = {
    "prefixes": ({"prefix": 5}, 1.5),
    "pairs of words": ({"word_ngrams": (1, 2), "min_df": 2}, 2.0),
    "character n-grams": ({"char_ngrams": (3, 5), "min_df": 2, "prefix": 0}, 10.0),
}
# If all rows have more than _MANY entries, what would make training slow is not tried: terms that
# make the entries so many times as many as those of words, and refining.
_MANY, _MOST_TIMES, _MOST_TIMES_REFINED = 10_000_000, 4.0, 1.5
_UNHASHED = "0" * 64  # stands for the fingerprint of rows that nothing is kept of

Rows = AbstractContextManager[tuple[TrainingData, TrainOptions]]


@contextmanager
def texts_with_best_terms(
    source: Any,
    options: TrainOptions,
    text: TextParams | None = None,
    *,
    fmt: TextFormat | None = None,
    log: Log | None = None,
    dense_only: bool = False,
    encoder: StrPath | None = None,
    **more: Any,
) -> Iterator[tuple[TrainingData, TrainOptions]]:
    """Like `texts_read`; with ``best=True``, the terms are chosen, unless they are given by `text`.

    So is whether to use the `encoder`. Its embeddings are kept until the model is trained.
    """
    how = {"fmt": fmt, **more}
    source, directory = Texts.of(source, fmt), options.path
    if directory and (encoder is not None or options.params.best):
        check_output(directory, options.overwrite)
    encoded = directory and directory / ENCODED
    found = None if encoder is None else Encoder.find(encoder, encoded, log)
    if options.params.best and not dense_only and (text is None or found):
        earlier = None if directory is None or options.overwrite else earlier_terms(directory)
        if earlier and (
            text not in (None, earlier[0])
            or earlier[1][-1].get("encoder") != (found and found.sha256)
        ):
            earlier = None
        folder = directory and directory / f"{STAGE}terms"
        trial = replace(options, path=folder)
        rows = how | {"pair_weights": None, "examples": False, "label_texts": None}
        try:
            text, table = earlier or choose_terms(
                lambda terms, encoder: texts_read(
                    source, trial, terms, encoder=encoder, hashed=_UNHASHED, **rows
                ),
                thread_count(options.threads),
                log,
                text,
                found,
            )
        finally:
            if folder:
                rmtree(folder, ignore_errors=True)
        options = replace(options, terms_table=table)
        found = found if table[-1]["used"] else None
    if options.params.best and how.get("label_texts") is None and how.get("dense") is None:
        how["label_texts"] = True
    how |= {"log": log, "dense_only": dense_only, "encoder": found}
    with texts_read(source, options, text, **how) as rows_and_options:
        yield rows_and_options
    if encoded:
        rmtree(encoded, ignore_errors=True)


def choose_terms(
    read: Callable[[TextParams, Encoder | None], Rows],
    threads: int,
    log: Log | None = None,
    given: TextParams | None = None,
    encoder: Encoder | None = None,
) -> tuple[TextParams, tuple[dict[str, Any], ...]]:
    """Return the best terms, unless they are given, and a row of results for each kind.

    `read` gives the rows of terms. The last kind is the encoder, if there is one.

    The rows say what was gained over the terms before, in points of a metric, with half of the 95 %
    interval, and the seconds that it took to find out.
    """
    text = given or TextParams()
    with read(text, None) as (data, options):
        trials, best, C = _trial(data, options, threads)
        words = int(sparse_part(data.X).nnz)
    first = "words" if given is None else "given terms"
    table: list[dict[str, Any]] = [{"terms": first, "entries": words, "C": C, "used": True}]
    most = max(_MOST_TIMES * words, _MANY)
    kinds = _MORE if given is None else {}
    for name, (more, times) in (kinds | ({"encoder": ({}, 1.0)} if encoder else {})).items():
        row: dict[str, Any] = {"terms": name, "entries": int(times * words), "used": False}
        table.append(row)
        if row["entries"] > most:
            continue
        if log:
            log(f"trying {name} as features")
        tried = encoder if name == "encoder" else None
        if tried:
            row["encoder"] = tried.sha256
        with read(replace(text, **more), tried) as (data, options):
            row["entries"] = int(sparse_part(data.X).nnz)
            if row["entries"] > most and not tried:
                continue
            trials, found, _ = _trial(data, options, threads, C)
        gain = float(found["quality"]) - float(best["quality"])
        margin = difference_margin(found, best, trials.judge.weights)
        row |= {"metric": trials.metric, "gain": round(gain, 2), "margin": round(margin, 2)}
        seconds = sum(result["seconds"] for result in trials.table)
        row |= {"seconds": round(seconds, 1), "used": gain > margin / 2}
        if row["used"]:
            text, best = replace(text, **more), found
    return text, tuple(table)


def refines(table: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether refining is tried with the terms that were chosen."""
    entries = [row["entries"] for row in table if row["used"]] or [0]
    return bool(entries[-1] <= max(_MOST_TIMES_REFINED * entries[0], _MANY))


def _trial(
    data: TrainingData, options: TrainOptions, threads: int, C: float = 0.0
) -> tuple[Trials, Found, float]:
    """Train a sample of the labels at a C, by default the best; return what was found, and C."""
    job = Job.prepare(replace(few_rows(data), hashed=_UNHASHED), options)
    validation = Validation.prepare(job, options.validation, _UNHASHED)
    job, store = ChoiceOfC(validation).stated(job), Store(None, Executor(threads), None, None)
    trials = Trials.prepare(job, validation, store, None)
    C = C or peak(trials.quality_at)
    trials.quality_at(C)
    return trials, trials.found[C, job.params.positive_weight], C
