"""What travels over HTTP: request → rows, top k or explanation → answer."""

from __future__ import annotations

import json
import re
import reprlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.errors import DataError
from dismec.features.vocabulary import Vocabulary
from dismec.model.calibration import Calibration
from dismec.model.explanation import highlights
from dismec.model.model import Model
from dismec.model.topk_model import TopkModel

__all__ = [
    "Limits",
    "Query",
    "Question",
    "answer",
    "describe",
    "example",
    "explain",
    "is_calibrated",
    "parse_query",
    "parse_question",
]

DEFAULT_K = 5
DEFAULT_TERMS, MOST_TERMS = 20, 1000
HIGHLIGHTS = 2000  # pieces of a text that are marked, at most: those that weigh most
HIGHLIGHTED = 1_000_000  # characters of a text that is marked at all: a longer one takes seconds
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_FEATURES_KEY = re.compile(rb'"features"\s*:\s*')
_NO_TEXTS = "the model takes features, not texts: it was not trained on texts"
_EXAMPLE_LABELS, _EXAMPLE_WORDS = 2, 8


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may ask of the server.

    Attributes
    ----------
    body
        Bytes of a body.
    rows
        Rows of a request.
    k
        Labels a row.
    queue
        Requests that may wait while every worker is busy.
    """

    body: int = 10_000_000
    rows: int = 1000
    k: int = 100
    queue: int = 100


@dataclass(frozen=True)
class Query:
    """A request for predictions: CSR rows, k, what ranks and its least, and if it was one row."""

    X: sp.csr_array
    k: int
    threshold: float | None
    single: bool
    by_probability: bool = False


@dataclass(frozen=True)
class Question:
    """A request for an explanation: one CSR row, the text it was, the label, terms to name."""

    X: sp.csr_array
    text: str | None
    label: int | str
    limit: int


def parse_query(
    body: bytes,
    n_features: int,
    limits: Limits,
    vocabulary: Vocabulary | None = None,
    *,
    calibrated: bool = False,
) -> Query:
    """The query in the body of a request to ``/predict``.

    Raises
    ------
    DataError
        With a reason of one line, for anything but what `openapi` describes.
    """
    body, X = _lift_rows(body, n_features, limits.rows)
    request = _read_object(body)
    _check_keys(request, ("features", "text", "rows", "k", "threshold", "rank"), "the request")
    given = [key for key in ("features", "text", "rows") if key in request]
    if len(given) != 1:
        raise DataError('the request needs either "features" or "text" (a row), or "rows" (many)')
    single = given != ["rows"]
    rows = [{given[0]: request[given[0]]}] if single else request["rows"]
    if not isinstance(rows, list):
        raise DataError('"rows" is not a list')
    if len(rows) > limits.rows:
        raise DataError(f"{len(rows)} rows; at most {limits.rows} a request")
    k = _number_within(request, "k", DEFAULT_K, limits.k)
    threshold = request.get("threshold")
    if threshold is not None and not _is_float32(threshold):
        raise DataError(f'"threshold" is {reprlib.repr(threshold)}; expected a number')
    rank = request.get("rank", "score")
    if rank not in ("score", "probability"):
        raise DataError(f'"rank" is {reprlib.repr(rank)}; expected "score" or "probability"')
    if rank == "probability" and not calibrated:
        raise DataError('"rank" is "probability", and the model gives none: it is not calibrated')
    if rank == "probability" and threshold is not None and not 0 <= threshold <= 1:
        raise DataError(f'"threshold" is {threshold:g}; a probability is between 0 and 1')
    kind = "text" if rows and isinstance(rows[0], dict) and "text" in rows[0] else "features"
    values = [_value(row, kind, f"row {number}") for number, row in enumerate(rows)]
    if kind == "text":
        X = _text_rows(values, vocabulary)
    elif X is None:
        X = _matrix(values, n_features)
    return Query(X, k, threshold, single, rank == "probability")


def answer(model: TopkModel, query: Query) -> bytes:
    """The best labels of the query's rows as JSON; scores are exactly those of `predict_topk`."""
    if query.by_probability and isinstance(model, Model):
        labels, ranks = model.predict_proba_topk(query.X, query.k, threads=1)
        ranked = "probabilities"
    else:
        labels, ranks = model.predict_topk(query.X, query.k, threads=1)
        ranked = "scores"
    lists = {"labels": labels.tolist(), ranked: ranks.tolist()}
    calibration = _calibration(model)
    if calibration is not None and ranked == "scores":
        lists["probabilities"] = calibration.probabilities(labels, ranks).tolist()
    least = -np.inf if query.threshold is None else query.threshold
    rows: list[dict[str, Any]] = []
    for i, row_labels in enumerate(lists["labels"]):
        # Best first, and empty places (label −1) last.
        kept = sum(
            label >= 0 and rank >= least
            for label, rank in zip(row_labels, lists[ranked][i], strict=True)
        )
        row = {key: values[i][:kept] for key, values in lists.items()}
        if model.names is not None:
            row["names"] = [model.names[label] for label in row["labels"]]
        rows.append(row)
    return json.dumps(rows[0] if query.single else {"rows": rows}).encode()


def parse_question(body: bytes, n_features: int, vocabulary: Vocabulary | None = None) -> Question:
    """The question in the body of a request to ``/explain``; errors as of `parse_query`."""
    request = _read_object(body)
    _check_keys(request, ("features", "text", "label", "limit"), "the request")
    if ("features" in request) == ("text" in request):
        raise DataError('the request needs either "features" or "text"')
    label = request.get("label")
    if isinstance(label, bool) or not isinstance(label, int | str):
        raise DataError(f'"label" is {reprlib.repr(label)}; expected the id or name of a label')
    limit = _number_within(request, "limit", DEFAULT_TERMS, MOST_TERMS)
    if "text" not in request:
        return Question(_matrix([request["features"]], n_features), None, label, limit)
    X = _text_rows([request["text"]], vocabulary)
    return Question(X, request["text"], label, limit)


def explain(model: Model, question: Question) -> bytes:
    """What carried a label's score, as JSON.

    Raises
    ------
    DataError
        If the model has no such label, or never saw it.
    """
    vocabulary = model.vocabulary
    label = _label_id(model, question.label)
    terms = None if vocabulary is None else vocabulary.terms
    explanation = model.explain(question.X, label, terms=terms)
    told = explanation.to_dict()
    told["terms"] = told["terms"][: question.limit]
    text = question.text
    if text is not None and len(text) <= HIGHLIGHTED and vocabulary is not None:
        marked = highlights(explanation, vocabulary.spans(text))
        told["highlights"] = _strongest(text, marked)
    return json.dumps(told).encode()


def _strongest(text: str, pieces: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """The pieces of the words that weigh most in all, in the order of the text.

    A word that carries a label may be there thousands of times, and each of them adds next to
    nothing: it counts as a whole, at its first place fully, at its second by half, and so on.
    """
    words = [text[begin:end].lower() for begin, end, _ in pieces]
    totals: dict[str, float] = {}
    for word, (_, _, part) in zip(words, pieces, strict=True):
        totals[word] = totals.get(word, 0.0) + part
    places: Counter[str] = Counter()
    ranks = []
    for number, word in enumerate(words):
        places[word] += 1
        ranks.append((-abs(totals[word]) / places[word], number))
    return [pieces[number] for number in sorted(n for _, n in sorted(ranks)[:HIGHLIGHTS])]


def example(model: Model, seed: int | None = None) -> str:
    """A text made of the words that speak most for a few labels; frequent labels come up more.

    Raises
    ------
    DataError
        If the model takes no texts.
    """
    if model.vocabulary is None:
        raise DataError(_NO_TEXTS)
    rng = np.random.default_rng(seed)
    seen = np.flatnonzero(model.label_counts)
    counts = model.label_counts[seen]
    every = sp.csr_array(np.ones((1, model.n_features), np.float32))
    sentences = []
    for label in rng.choice(
        seen, min(_EXAMPLE_LABELS, len(seen)), replace=False, p=counts / counts.sum()
    ):
        words: dict[str, None] = {}  # each once, those that speak most first
        for term in model.explain(every, int(label)).terms:
            new = model.vocabulary.terms[term.feature].split()
            if term.contribution > 0 and all(word.isalpha() for word in new):
                words |= dict.fromkeys(new)
            if len(words) >= _EXAMPLE_WORDS:
                break
        sentences.append(" ".join(rng.permutation(list(words))).capitalize() + ".")
    return " ".join(sentences)


def describe(model: TopkModel, name: str, limits: Limits, version: str) -> dict[str, Any]:
    """What is served: the answer of ``/model``."""
    manifest = model.manifest
    return {
        "name": name,
        "labels": model.n_labels,
        "features": model.n_features,
        "names": model.names is not None,
        "text": model.vocabulary is not None,
        "calibrated": is_calibrated(model),
        "explanations": isinstance(model, Model),
        "weights": model.nnz,
        "params": model.params,
        "training_rows": manifest.n_rows,
        "training_data": manifest.data,
        "trained_by": manifest.dismec,
        "version": version,
        "limits": {"body": limits.body, "rows": limits.rows, "k": limits.k},
    }


def is_calibrated(model: TopkModel) -> bool:
    """Whether the model gives probabilities where it is: on a cluster none does."""
    return _calibration(model) is not None


def _calibration(model: TopkModel) -> Calibration | None:
    return model.calibration if isinstance(model, Model) else None


def _label_id(model: Model, label: int | str) -> int:
    if isinstance(label, int):
        if not 0 <= label < model.n_labels:
            raise DataError(f"label {reprlib.repr(label)} is outside 0 … {model.n_labels - 1}")
        return label
    if model.names is None:
        raise DataError("the labels have no names; ask for one by its id")
    if label not in model.label_numbers:
        raise DataError(f"there is no label {reprlib.repr(label)}")
    return model.label_numbers[label]


def _read_object(body: bytes) -> dict[str, Any]:
    request = _read_json(body)
    if not isinstance(request, dict):
        raise DataError("the body is not a JSON object")
    return request


def _read_json(body: bytes) -> Any:
    def refuse(constant: str) -> Any:
        raise DataError(f"{constant} is not JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            raise DataError("an object has the same key twice")
        return entries

    try:
        return json.loads(body.decode("utf-8"), parse_constant=refuse, object_pairs_hook=once)
    except DataError:
        raise
    except UnicodeDecodeError:
        raise DataError("the body is not UTF-8") from None
    except RecursionError:
        raise DataError("the body is nested too deeply") from None
    except ValueError as error:  # bad JSON, or a number with thousands of digits
        raise DataError(f"the body is not JSON: {error}") from None


def _check_keys(entries: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in entries:
        if key not in known:
            raise DataError(f"{where} has an unknown key {reprlib.repr(key)}")


def _number_within(request: dict[str, Any], key: str, default: int, most: int) -> int:
    number = request.get(key, default)
    if type(number) is not int or not 1 <= number <= most:
        raise DataError(f'"{key}" is {reprlib.repr(number)}; expected 1 to {most}')
    return number


def _is_float32(value: Any) -> bool:
    return type(value) in (int, float) and -_FLOAT32_MAX <= value <= _FLOAT32_MAX


def _lift_rows(body: bytes, n_features: int, limit: int) -> tuple[bytes, sp.csr_array | None]:
    """The body with its lists of features blanked out, and these as rows.

    They are nearly all of its text, and native code reads them many times faster. Where there are
    more than `limit`, or one is not as it should be, the body comes back as it is, without rows.
    """
    if b"\\" in body:  # a key may be written with escapes, and is not found here
        return body, None
    rest: list[bytes] = []
    ids: list[npt.NDArray[np.int32]] = []
    values: list[npt.NDArray[np.float32]] = []
    end = 0
    while key := _FEATURES_KEY.search(body, end):
        pairs = kernels.parse_pairs(body, key.end(), n_features) if len(ids) < limit else None
        if pairs is None:
            return body, None
        rest += body[end : key.end()], b"[]".ljust(pairs[2] - key.end())
        ids.append(pairs[0])
        values.append(pairs[1])
        end = pairs[2]
    if not ids:
        return body, None
    indptr = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    arrays = np.concatenate(values), np.concatenate(ids), indptr
    return b"".join([*rest, body[end:]]), sp.csr_array(arrays, shape=(len(ids), n_features))


def _value(row: Any, kind: str, where: str) -> Any:
    """What a row holds; `kind` is that of the first, and rows are all of one kind."""
    if not isinstance(row, dict) or kind not in row:
        raise DataError(f'{where} is not an object with "{kind}"')
    _check_keys(row, (kind,), where)
    return row[kind]


def _text_rows(texts: list[Any], vocabulary: Vocabulary | None) -> sp.csr_array:
    if vocabulary is None:
        raise DataError(_NO_TEXTS)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f'row {number}: "text" is {reprlib.repr(text)}; expected a string')
    return vocabulary.rows(texts, threads=1)


def _matrix(lists: list[Any], n_features: int) -> sp.csr_array:
    ids: list[int] = []
    values: list[float] = []
    indptr = [0]
    for number, features in enumerate(lists):
        _append(features, n_features, f"row {number}", ids, values)
        indptr.append(len(ids))
    arrays = np.array(values, np.float32), np.array(ids, np.int32), np.array(indptr, np.int32)
    return sp.csr_array(arrays, shape=(len(lists), n_features))


def _append(
    features: Any, n_features: int, where: str, ids: list[int], values: list[float]
) -> None:
    if not isinstance(features, list):
        raise DataError(f'{where}: "features" is not a list of pairs [id, value]')
    for pair in features:
        if type(pair) is not list or len(pair) != 2:
            raise DataError(f"{where}: {reprlib.repr(pair)} is not a pair [id, value]")
        feature, value = pair
        if type(feature) is not int:
            raise DataError(f"{where}: feature id {reprlib.repr(feature)} is not an integer")
        if not 0 <= feature < n_features:
            raise DataError(
                f"{where}: feature {reprlib.repr(feature)} is outside 0 … {n_features - 1}"
            )
        if not _is_float32(value):
            raise DataError(
                f"{where}, feature {feature}: {reprlib.repr(value)} is not a finite float32"
            )
        ids.append(feature)
        values.append(value)
    new = ids[len(ids) - len(features) :]
    if len(set(new)) < len(new):
        twice, _ = Counter(new).most_common(1)[0]
        raise DataError(f"{where}: feature {twice} is there twice")
