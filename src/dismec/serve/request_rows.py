"""The body of a request → rows, and the options of the request."""

from __future__ import annotations

import json
import re
import reprlib
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import kernels
from dismec.data.mixed import mixed_rows, with_dense
from dismec.errors import DataError
from dismec.features.vocabulary import TextRows, Vocabulary
from dismec.model.model import Model
from dismec.serve.contract import LARGEST, Contract

_FEATURES_KEY = re.compile(rb'"features"\s*:\s*')
_Pairs = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]  # ids and values of a row


class NumericRows(DataError):  # noqa: N818  it says what came
    """Numeric rows were sent to a model that uses texts."""


class LongTexts(DataError):  # noqa: N818  it says what came
    """The texts of a request are too long to be answered in a reasonable time."""


def parse(path: str, body: bytes, contract: Contract) -> tuple[Any, dict[str, Any]]:
    """Return the rows of a request for a model, and the request checked by `Contract.check`.

    Its "features" may be empty lists there, because they are in the rows. `DataError` has a
    one-line reason; it is `NumericRows` if features are sent to a text model without "numeric", and
    `LongTexts` if there are more characters than the contract allows.
    """
    model = contract.model
    body, X = _lift_rows(body, model.n_features, contract.limits.rows)
    read = _read_json(body)
    request = contract.check(path, read)
    length = sum(len(row.get("text", "")) for row in request.get("rows", [request]))
    if length > (most := contract.limits.characters):  # the time grows with the length
        raise LongTexts(f"the texts have {length} characters; at most {most} per request")
    least = request.get("threshold")
    if least is not None and request["rank"] == "probability" and not 0 <= least <= 1:
        raise DataError(f'"threshold" is {least:g}; a probability is between 0 and 1')
    rows = request.get("rows", [request])
    has_texts = bool(rows) and "text" in rows[0]
    numeric = request.get("numeric", False)
    where = "row index {}" if "rows" in request else "the row"
    encodes = has_texts and model.encoder is not None
    dense = None
    if model.n_dense and not encodes:
        dense = _read_dense(rows, model.n_dense, where)
    if dense is not None and not model.n_features:
        return mixed_rows(None, dense), request
    if has_texts and numeric:
        raise DataError('"numeric" applies to "features", but the rows are texts')
    if rows and not has_texts and not numeric and model.vocabulary is not None:
        raise NumericRows(
            'the model takes texts, not features: send "text", or "numeric": true if the ids are '
            "the numbers of its terms"
        )
    if has_texts:
        texts = [row["text"] for row in rows]
        return with_dense(text_vocabulary(model).rows(texts, threads=1), dense), request
    if X is None:
        n_features = model.n_features
        named = ((where.format(n), row["features"]) for n, row in enumerate(rows))
        X = _stacked([_pairs(pairs, n_features, name) for name, pairs in named], n_features)
    X = X if model.vocabulary is None else TextRows(X)
    return with_dense(X, dense), request


def _read_dense(rows: list[dict[str, Any]], width: int, called: str) -> npt.NDArray[np.float32]:
    """Return the dense features of rows; `called` is the name of a row in errors."""
    for number, row in enumerate(rows):
        for place, value in enumerate(row["dense"]):
            if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:
                where, shown = called.format(number), reprlib.repr(value)
                raise DataError(f"{where}, dense feature {place}: {shown} is not a finite float32")
    return np.array([row["dense"] for row in rows], np.float32).reshape(len(rows), width)


def text_vocabulary(model: Model) -> Vocabulary:
    """Return the vocabulary of a text model; raise `DataError` if the model uses no texts."""
    if model.vocabulary is None:
        raise DataError("the model takes features, not texts: it was not trained on texts")
    return model.vocabulary


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
    except ValueError as error:  # invalid JSON, or a number with thousands of digits
        raise DataError(f"the body is not JSON: {error}") from None


def _lift_rows(body: bytes, n_features: int, limit: int) -> tuple[bytes, sp.csr_array | None]:
    """Return the body with its lists of features blanked out, and these lists as rows.

    They make up most of the text, and native code reads them many times faster. If there are more
    than `limit`, or one is invalid, the body is returned unchanged, without rows.
    """
    if b"\\" in body:  # keys with escapes are not found here
        return body, None
    rest: list[bytes] = []
    rows: list[_Pairs] = []
    end = 0
    while key := _FEATURES_KEY.search(body, end):
        pairs = kernels.parse_pairs(body, key.end(), n_features) if len(rows) < limit else None
        if pairs is None:
            return body, None
        rest += body[end : key.end()], b"[]".ljust(pairs[2] - key.end())
        rows.append(pairs[:2])
        end = pairs[2]
    return b"".join([*rest, body[end:]]), _stacked(rows, n_features) if rows else None


def _stacked(rows: list[_Pairs], n_features: int) -> sp.csr_array:
    indptr = np.cumsum([0, *(len(ids) for ids, _ in rows)], dtype=np.int32)
    ids = np.concatenate([np.empty(0, np.int32), *(ids for ids, _ in rows)])
    values = np.concatenate([np.empty(0, np.float32), *(values for _, values in rows)])
    return sp.csr_array((values, ids, indptr), shape=(len(rows), n_features))


def _pairs(features: list[Any], n_features: int, where: str) -> _Pairs:
    for pair in features:
        if type(pair) is not list or len(pair) != 2:
            raise DataError(f"{where}: {reprlib.repr(pair)} is not a pair [id, value]")
        feature, value = pair
        if type(feature) is not int:
            raise DataError(f"{where}: feature id {reprlib.repr(feature)} is not an integer")
        if not 0 <= feature < n_features:
            shown = reprlib.repr(feature)
            raise DataError(f"{where}: feature {shown} is outside 0 … {n_features - 1}")
        if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:
            shown = reprlib.repr(value)
            raise DataError(f"{where}, feature {feature}: {shown} is not a finite float32")
    ids = [feature for feature, _ in features]
    if len(set(ids)) < len(ids):
        twice, _ = Counter(ids).most_common(1)[0]
        raise DataError(f"{where}: feature {twice} occurs twice")
    return np.array(ids, np.int32), np.array([value for _, value in features], np.float32)
