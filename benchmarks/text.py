"""Texts → features and a model, against scikit-learn; exits with 1 if below the target.

The environment variable DISMEC_DATA names the folder that holds cooking-text and eurlex57k-text,
each with train and test as JSON lines {"text": …, "labels": […]}.

    python benchmarks/text.py speed     # learning the vocabulary and computing the rows
    python benchmarks/text.py choice    # n-grams and min_df, on a held-out part of train
    python benchmarks/text.py stages    # where the time goes, from a file to a model
    python benchmarks/text.py quality   # P@1 on test, against OneVsRestClassifier(LinearSVC())
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

import dismec
from dismec.cpu import available_cpus
from dismec.data.corpus import Texts
from dismec.features.text_rows import learn, weighted_rows
from dismec.features.transform import Transform
from dismec.features.vocabulary import TextParams, Vocabulary, VocabularyBuilder
from machine import print_heading
from text_pipelines import load

SETS = ("cooking-text", "eurlex57k-text")
CHOICES = (  # n-gram ranges of words and of characters, min_df
    ((1, 1), (0, 0), 1),
    ((1, 1), (0, 0), 2),
    ((1, 1), (0, 0), 3),
    ((1, 2), (0, 0), 2),
    ((1, 2), (0, 0), 3),
    ((1, 1), (3, 5), 3),
)
SPEED = 5  # times scikit-learn's, with one thread, at least
LOSS = 0.3  # points of P@1 below LinearSVC, at most


def indicator(labels: list[list[str]], known: list[str]) -> sp.csr_array:
    number = {name: i for i, name in enumerate(known)}
    rows = [sorted({number[name] for name in names if name in number}) for names in labels]
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.array([label for row in rows for label in row], np.int32)
    shape = (len(labels), len(known))
    return sp.csr_array((np.ones(len(indices), np.uint8), indices, indptr), shape=shape)


def vocabulary_of(texts: list[str], params: TextParams, threads: int | None = None) -> Vocabulary:
    builder = VocabularyBuilder(params, threads=threads)
    builder.add(texts)
    return builder.finish()


def rows_of(texts: list[str], params: TextParams, threads: int) -> sp.csr_array:
    X = vocabulary_of(texts, params, threads).rows(texts, threads=threads)
    return Transform.fit(X, tfidf=True, bias=0.0).apply(X)


def best_time(times: int, work: Callable[..., Any], *args: Any) -> float:
    best = np.inf
    for _ in range(times):
        start = time.perf_counter()
        work(*args)
        best = min(best, time.perf_counter() - start)
    return best


def speed() -> bool:
    good = True
    print(
        f"{'text':16}{'n-grams':>9}{'MB':>6}{'terms':>10}{'sklearn s':>11}{'1 thread s':>12}"
        f"{'all s':>8}{'MB/s':>7}{'MB/s':>7}{'times':>7}{'times':>7}"
    )
    for name in SETS:
        texts, _ = load(name, "train")
        size = sum(len(text.encode()) for text in texts) / 1e6
        for ngrams in ((1, 1), (1, 2)):
            params = TextParams(word_ngrams=ngrams)
            theirs = TfidfVectorizer(sublinear_tf=True, ngram_range=ngrams)
            slow = best_time(2, theirs.fit_transform, texts)
            one, every = (
                best_time(5, rows_of, texts, params, threads) for threads in (1, available_cpus())
            )
            n_terms = len(theirs.vocabulary_)
            print(
                f"{name:16}{ngrams!s:>9}{size:6.1f}{n_terms:10,}{slow:11.2f}{one:12.3f}"
                f"{every:8.3f}{size / one:7.0f}{size / every:7.0f}{slow / one:7.1f}"
                f"{slow / every:7.1f}"
            )
            good &= slow / one >= SPEED
    return good


def measure(
    train: tuple[list[str], list[list[str]]],
    test: tuple[list[str], list[list[str]]],
    params: TextParams,
) -> tuple[int, float, float, dict[str, Any]]:
    """Return the number of terms, training seconds, MB of the model and its metrics."""
    known = sorted({name for names in train[1] for name in names})
    vocabulary = vocabulary_of(train[0], params)
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        model = dismec.train(
            vocabulary.rows(train[0]),
            indicator(train[1], known),
            directory,
            dismec.TrainingParams(tfidf=True),
        )
        seconds = time.perf_counter() - start
        terms = sum(array.nbytes for array in vocabulary.to_arrays().values())
        files = sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())
        found = model.evaluate(vocabulary.rows(test[0]), indicator(test[1], known))
    return len(vocabulary), seconds, (terms + files) / 1e6, found


def choice() -> bool:
    print(
        f"{'text':16}{'words':>9}{'chars':>9}{'min_df':>8}{'terms':>11}{'train s':>9}{'MB':>8}"
        f"{'P@1':>8}{'P@3':>8}{'P@5':>8}"
    )
    for name in SETS:
        texts, labels = load(name, "train")
        held = np.random.default_rng(0).random(len(texts)) < 0.2
        train, valid = (
            ([texts[i] for i in rows], [labels[i] for i in rows])
            for rows in (np.flatnonzero(~held), np.flatnonzero(held))
        )
        for words, chars, min_df in CHOICES:
            params = TextParams(word_ngrams=words, char_ngrams=chars, min_df=min_df)
            n_terms, seconds, size, found = measure(train, valid, params)
            print(
                f"{name:16}{words!s:>9}{chars!s:>9}{min_df:8}{n_terms:11,}{seconds:9.1f}{size:8.1f}"
                + "".join(f"{found[f'P@{k}']:8.2f}" for k in (1, 3, 5)),
                flush=True,
            )
    return True


def stages() -> bool:
    """Print the time of each stage; both passes over the file include reading it."""
    folder = Path(os.environ.get("DISMEC_DATA", "data")) / "eurlex57k-text"
    texts = Texts.of(folder / "train.jsonl.gz")

    def timed(what: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = work()
        print(f"{what:28}{time.perf_counter() - start:8.2f} s", flush=True)
        return found

    with tempfile.TemporaryDirectory() as directory:
        timed("reading the file", lambda: list(texts.read()))
        vocabulary, names = timed("vocabulary, with reading", lambda: learn(texts, TextParams()))
        numbers = {name: i for i, name in enumerate(names)}
        data = timed("rows, with reading", lambda: weighted_rows(texts, vocabulary, numbers)[0])
        params = dismec.TrainingParams(tfidf=True)
        timed("training", lambda: dismec.train(data.X, data.Y, directory, params, names=names))
    return True


def quality() -> bool:
    train, test = (load("cooking-text", part) for part in ("train", "test"))
    known = sorted({name for names in train[1] for name in names})
    params = TextParams()
    *_, found = measure(train, test, params)
    vocabulary = vocabulary_of(train[0], params)
    X = vocabulary.rows(train[0])
    transform = Transform.fit(X, tfidf=True, bias=0.0)
    Y = indicator(train[1], known).astype(np.int64)  # scikit-learn gives wrong results for uint8
    svm = OneVsRestClassifier(LinearSVC()).fit(sp.csr_matrix(transform.apply(X)), sp.csr_matrix(Y))
    scores = svm.decision_function(sp.csr_matrix(transform.apply(vocabulary.rows(test[0]))))
    truth = indicator(test[1], known)
    hits = truth[np.arange(len(test[0])), scores.argmax(axis=1)]
    theirs = 100 * hits.mean()
    print(f"cooking-text, P@1 on test: dismec {found['P@1']:.2f}, LinearSVC {theirs:.2f}")
    return bool(found["P@1"] >= theirs - LOSS)


if __name__ == "__main__":
    parts = {"speed": speed, "choice": choice, "stages": stages, "quality": quality}
    wanted = sys.argv[1:] or list(parts)
    if not set(wanted) <= set(parts):
        sys.exit(__doc__)
    print_heading("scikit-learn")
    results = [parts[part]() for part in wanted]
    sys.exit(0 if all(results) else 1)
