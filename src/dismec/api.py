"""What travels over HTTP: request → rows, top k → answer, and the description of both."""

from __future__ import annotations

import html
import json
import re
import reprlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.errors import DataError
from dismec.model import TopkModel
from dismec.native import kernels

__all__ = ["Limits", "Query", "answer", "describe", "docs_page", "openapi", "parse_query"]

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_FEATURES_KEY = re.compile(rb'"features"\s*:\s*')
_K = 5


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
    """A request for predictions: CSR rows, k, the least score, and whether it was one row."""

    X: sp.csr_array
    k: int
    threshold: float | None
    single: bool


def parse_query(body: bytes, n_features: int, limits: Limits) -> Query:
    """The query in the body of a request to ``/predict``.

    Raises
    ------
    DataError
        With a reason of one line, for anything but what `openapi` describes.
    """
    body, X = _lift_rows(body, n_features, limits.rows)
    request = _read_json(body)
    if not isinstance(request, dict):
        raise DataError("the body is not a JSON object")
    _check_keys(request, ("features", "rows", "k", "threshold"), "the request")
    if ("features" in request) == ("rows" in request):
        raise DataError('the request needs either "features" (one row) or "rows" (many)')
    single = "features" in request
    rows = [{"features": request["features"]}] if single else request["rows"]
    if not isinstance(rows, list):
        raise DataError('"rows" is not a list')
    if len(rows) > limits.rows:
        raise DataError(f"{len(rows)} rows; at most {limits.rows} a request")
    k = request.get("k", _K)
    if type(k) is not int or not 1 <= k <= limits.k:
        raise DataError(f'"k" is {reprlib.repr(k)}; expected 1 to {limits.k}')
    threshold = request.get("threshold")
    if threshold is not None and not _is_float32(threshold):
        raise DataError(f'"threshold" is {reprlib.repr(threshold)}; expected a number')
    lists = [_feature_list(row, f"row {number}") for number, row in enumerate(rows)]
    return Query(_matrix(lists, n_features) if X is None else X, k, threshold, single)


def answer(model: TopkModel, query: Query) -> bytes:
    """The best labels of the query's rows as JSON; scores are exactly those of `predict_topk`."""
    labels, scores = model.predict_topk(query.X, query.k, threads=1)
    least = -np.inf if query.threshold is None else query.threshold
    rows: list[dict[str, Any]] = []
    for row_labels, row_scores in zip(labels.tolist(), scores.tolist(), strict=True):
        # Best first, and empty places (label −1) last.
        kept = sum(
            label >= 0 and score >= least
            for label, score in zip(row_labels, row_scores, strict=True)
        )
        row = {"labels": row_labels[:kept], "scores": row_scores[:kept]}
        if model.names is not None:
            row["names"] = [model.names[label] for label in row["labels"]]
        rows.append(row)
    return json.dumps(rows[0] if query.single else {"rows": rows}).encode()


def describe(model: TopkModel, version: str) -> dict[str, Any]:
    """What is served: the answer of ``/model``."""
    manifest = model.manifest
    return {
        "labels": model.n_labels,
        "features": model.n_features,
        "names": model.names is not None,
        "weights": model.nnz,
        "params": model.params,
        "training_rows": manifest.n_rows,
        "training_data": manifest.data,
        "trained_by": manifest.dismec,
        "version": version,
    }


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


def _feature_list(row: Any, where: str) -> Any:
    if not isinstance(row, dict) or "features" not in row:
        raise DataError(f'{where} is not an object with "features"')
    _check_keys(row, ("features",), where)
    return row["features"]


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


def openapi(version: str, limits: Limits, guarded: bool) -> dict[str, Any]:
    """The OpenAPI description; `guarded` says that a token is asked for."""
    features = {
        "type": "array",
        "description": "Pairs [feature id, value]; ids from 0, each once, in any order.",
        "items": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
        "example": [[3, 0.5], [17, 1.0]],
    }
    options = {
        "k": {
            "type": "integer",
            "minimum": 1,
            "maximum": limits.k,
            "default": _K,
            "description": "Labels a row.",
        },
        "threshold": {
            "type": "number",
            "nullable": True,
            "description": "Leave out labels with a score below this.",
        },
    }
    best = {
        "labels": {"type": "array", "items": {"type": "integer"}, "description": "Best first."},
        "scores": {"type": "array", "items": {"type": "number"}},
        "names": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Only if the model has names.",
        },
    }
    schemas = {
        "Row": _object({"features": features}, "features"),
        "OneRow": _object({"features": features, **options}, "features"),
        "ManyRows": _object(
            {
                "rows": {"type": "array", "maxItems": limits.rows, "items": _ref("Row")},
                **options,
            },
            "rows",
        ),
        "Best": _object(best, "labels", "scores"),
        "BestOfRows": _object({"rows": {"type": "array", "items": _ref("Best")}}, "rows"),
        "Model": _object(
            {
                "labels": {"type": "integer"},
                "features": {"type": "integer"},
                "names": {"type": "boolean", "description": "Whether labels have names."},
                "weights": {"type": "integer"},
                "params": {"type": "object", "description": "Parameters of the training."},
                "training_rows": {"type": "integer"},
                "training_data": {"type": "string", "nullable": True, "description": "SHA-256."},
                "trained_by": {"type": "string", "description": "Version of dismec."},
                "version": {"type": "string", "description": "Version of the server."},
            }
        ),
        "Health": _object({"status": {"type": "string", "enum": ["ok"]}}, "status"),
        "Error": _object({"error": {"type": "string", "description": "One line."}}, "error"),
    }
    refused = {
        "400": "The request is malformed.",
        "408": "The body did not arrive in time.",
        "413": f"The body has more than {limits.body} bytes.",
        "503": "The queue is full, or as for /health; try again after Retry-After seconds.",
    }
    unready = {"503": "Workers of the cluster that hold weights are missing; there is no answer."}
    locked = {"401": "The token is missing or wrong."} if guarded else {}
    predict = _operation(
        "The best labels of one row or of many.",
        _either("Best", "BestOfRows"),
        {**refused, **locked},
    )
    predict["requestBody"] = {"required": True, "content": _json(_either("OneRow", "ManyRows"))}
    paths: dict[str, Any] = {
        "/predict": {"post": predict},
        "/model": {"get": _operation("What is served.", _ref("Model"), locked)},
        "/metrics": {"get": _operation("Counters as Prometheus text.", None, locked)},
        "/health": {"get": _operation("Whether the server answers.", _ref("Health"), unready)},
    }
    if guarded:
        failed = {"500": "The model could not be opened; the old one stays.", **locked}
        paths["/reload"] = {
            "post": _operation("Open the model directory anew.", _ref("Model"), failed)
        }
    for path, methods in paths.items():
        if guarded and path != "/health":
            for operation in methods.values():
                operation["security"] = [{"token": []}]
    components: dict[str, Any] = {"schemas": schemas}
    if guarded:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "dismec",
            "version": version,
            "description": "The best labels of sparse rows by a one-vs-rest model.",
        },
        "paths": paths,
        "components": components,
    }


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema |= {"required": list(required), "additionalProperties": False}
    return schema


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _either(*names: str) -> dict[str, Any]:
    return {"oneOf": [_ref(name) for name in names]}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(
    summary: str, schema: dict[str, Any] | None, errors: dict[str, str]
) -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}} if schema is None else _json(schema)
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "Done.", "content": content},
            **{
                status: {"description": reason, "content": _json(_ref("Error"))}
                for status, reason in sorted(errors.items())
            },
        },
    }


def docs_page(description: dict[str, Any]) -> str:
    """The OpenAPI description as a plain page that needs nothing from elsewhere."""
    parts = []
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            answers = "".join(
                f"<li>{status}: {html.escape(response['description'])}</li>"
                for status, response in operation["responses"].items()
            )
            lock = " (with the token)" if "security" in operation else ""
            body = operation.get("requestBody")
            takes = f"<p>Body:</p>{_listing(body['content'])}" if body else ""
            parts.append(
                f"<h2>{method.upper()} {path}</h2><p>{html.escape(operation['summary'])}{lock}</p>"
                f"{takes}<ul>{answers}</ul>"
            )
    schemas = _listing(description["components"]["schemas"])
    info = description["info"]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        f"<title>{info['title']}</title><h1>{info['title']} {info['version']}</h1>"
        f"<p>{info['description']} <a href=openapi.json>openapi.json</a></p>"
        f"{''.join(parts)}<h2>Schemas</h2>{schemas}</html>"
    )


def _listing(value: Any) -> str:
    return f"<pre>{html.escape(json.dumps(value, indent=1))}</pre>"
