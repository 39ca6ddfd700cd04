"""A model directory → JSON answers to request bodies; HTTP itself is elsewhere."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dismec.data.counts import counted
from dismec.data.files import watching
from dismec.data.hierarchy import load_tree
from dismec.errors import DismecError, ModelError
from dismec.features.vocabulary import TextRows
from dismec.model.allowed import Allowed
from dismec.model.explanation import highlights
from dismec.model.manifest import MANIFEST
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.model.provenance import shown
from dismec.model.rankings import MICRO_F1
from dismec.serve.contract import Contract, Limits
from dismec.serve.label_filter import LabelFilter, ServedTree
from dismec.serve.request_rows import parse, text_vocabulary

_EXAMPLE_LABELS, _EXAMPLE_WORDS = 2, 8

# Also in schemas.json.
_HIGHLIGHTS = 2000  # maximum number of highlighted pieces of a text: those with the largest weights
_HIGHLIGHTED = 1_000_000  # maximum length of a highlighted text: a longer one takes seconds
_HIGHLIGHTED_BY_CHARACTERS = 100_000  # the same if character n-grams are terms

_log = logging.getLogger(__name__)


class _Served(NamedTuple):
    """A model and what belongs to it, which always change together."""

    model: Model
    contract: Contract
    tree: ServedTree | None
    filter: LabelFilter
    files: object  # the state of the files on disk when they were opened


class Service:
    """The served model, for many threads; only `reload` must not run concurrently.

    `predict`, `explain` and `labels` raise `DataError` for a request that violates the contract,
    and `example` if the model does not use texts.

    `path` may be a link to the model directory. `hierarchy` is a file with the parents of labels.
    The processes of a server change the file `marker` to make each other reload the model.
    """

    def __init__(
        self,
        path: Path,
        limits: Limits,
        hierarchy: Path | None = None,
        marker: Path | None = None,
    ) -> None:
        self.name = path.absolute().name
        self.limits = limits
        self.version = version("dismec")
        self.has_hierarchy = hierarchy is not None
        self._path, self._hierarchy, self._marker = path, hierarchy, marker
        self._served = self._open()

    def _open(self) -> _Served:
        files = self.files_on_disk()
        model = _open_warm(self._path)
        tree = None
        if self._hierarchy is not None:
            labels = load_tree(self._hierarchy, model.names, model.n_labels)
            tree = ServedTree(labels, model.label_counts)
        contract = Contract(self.limits, model, hierarchy=tree is not None)
        return _Served(model, contract, tree, LabelFilter(model, tree), files)

    @property
    def model(self) -> Model:
        """The model that is currently served."""
        return self._served.model

    @property
    def contract(self) -> Contract:
        """The requests and answers of this model."""
        return self._served.contract

    def files_on_disk(self) -> object:
        """Return a value that changes when a reload may give another model or hierarchy."""
        manifest = self._path / MANIFEST
        model = manifest if manifest.exists() else self._path  # a model may be a single file
        found = []
        for file in filter(None, (model, self._hierarchy, self._marker)):
            with suppress(OSError):
                state = file.stat()
                found.append((file, state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size))
        return found

    @property
    def is_current(self) -> bool:
        """Whether the served model is the one on disk."""
        return self._served.files == self.files_on_disk()

    def predict(self, body: bytes) -> tuple[bytes, int]:
        """Return the best labels, with the scores of `predict_topk`, and the number of rows."""
        # For the whole request, even if another model is loaded.
        model, contract, tree, labels, _ = self._served
        X, request = parse("/predict", body, contract)
        rows = _best_labels(model, X, request, labels.find(request))
        if tree is not None:
            for row in rows:
                row["paths"] = [tree.path(label) for label in row["labels"]]
        answer = {"rows": rows} if "rows" in request else rows[0]
        return _json_bytes(answer), X.shape[0]

    def explain(self, body: bytes) -> bytes:
        """Return what contributes to the score of a label, and its rank."""
        model, contract, tree, *_ = self._served
        X, request = parse("/explain", body, contract)
        vocabulary = model.vocabulary
        terms = None if vocabulary is None else vocabulary.terms
        asked = request["label"]
        label = model.find_label(asked.strip() if isinstance(asked, str) else asked)
        explanation = model.explain(X, label, terms=terms)
        result = explanation.to_dict()
        result["rank"] = model.place(X, label)
        if tree is not None:
            result["path"] = tree.path(label)
        result["terms"] = result["terms"][: request["limit"]]
        text = request.get("text")
        if text is not None and vocabulary is not None:
            words_only = vocabulary.params.char_ngrams == (0, 0)
            if len(text) <= (_HIGHLIGHTED if words_only else _HIGHLIGHTED_BY_CHARACTERS):
                marked = highlights(explanation, vocabulary.spans(text))
                result["highlights"] = _strongest(text, marked)
        return _json_bytes(result)

    def labels(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the labels that match a search."""
        request = self.contract.check_query("/labels", query)
        served, limit = self._served, request["limit"]
        model = served.model
        found = served.filter.search.find(request["search"], limit + 1)
        rows = [
            {"label": label}
            | ({} if model.names is None else {"name": model.names[label]})
            | {"rows": int(model.label_counts[label] - model.without_rows[label])}
            for label in found[:limit]
        ]
        return {"labels": rows, "more": len(found) > limit}

    def tree(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return some nodes of the hierarchy, which must exist."""
        tree = self._served.tree
        assert tree is not None
        return tree.answer(self.contract.check_query("/tree", query))

    def example(self) -> dict[str, Any]:
        """Return a training text that the model stores or, if there is none, words of labels.

        Frequent labels are more likely.
        """
        vocabulary = text_vocabulary(self.model)
        rng = np.random.default_rng()
        if kept := self.model.manifest.examples:
            return {"text": str(rng.choice(kept)), "training": True}
        model = self.model
        seen = np.flatnonzero(model.label_counts)
        chances = model.label_counts[seen] / model.label_counts.sum()
        every: Any = TextRows(np.ones((1, model.n_features), np.float32))
        if model.n_dense:
            every = [every, np.zeros((1, model.n_dense), np.float32)]
        sentences = []
        for label in rng.choice(seen, min(_EXAMPLE_LABELS, len(seen)), replace=False, p=chances):
            words: dict[str, None] = {}  # each once, the strongest first
            for term in model.explain(every, int(label)).terms:
                new = vocabulary.terms[term.feature].split()
                if term.contribution > 0 and all(word.isalpha() for word in new):
                    words |= dict.fromkeys(new)
                if len(words) >= _EXAMPLE_WORDS:
                    break
            sentences.append(" ".join(rng.permutation(list(words))).capitalize() + ".")
        return {"text": " ".join(sentences), "training": False}

    def describe(self) -> dict[str, Any]:
        """Describe the served model: the answer of ``/model``."""
        (model, _, tree, *_), limits = self._served, self.limits
        manifest, calibration = model.manifest, model.calibration
        threshold = {"rank": "score", "value": 0.0, "chosen": "zero"}
        if calibration is not None:
            value = calibration.micro_threshold
            threshold = {"rank": "probability", "value": value, "chosen": MICRO_F1}
        return {
            "name": self.name,
            "labels": model.n_labels,
            "features": model.n_features,
            "dense": 0 if model.encoder else model.n_dense,
            "encoder": None if model.encoder is None else Path(model.encoder.name).name,
            "names": model.names is not None,
            "hierarchy": None if tree is None else tree.describe(),
            "text": model.vocabulary is not None,
            "calibrated": calibration is not None,
            "threshold": threshold,
            "examples": len(manifest.examples),
            "weights": model.nnz,
            "params": shown(model.params),
            "training_rows": manifest.n_rows,
            "training_data": manifest.data,
            "trained_by": manifest.dismec,
            "version": self.version,
            "limits": {key: getattr(limits, key) for key in ("body", "rows", "characters", "k")},
        }

    def reload(self) -> bool:
        """Switch to the model on disk; return False, and log the reason, if it is invalid."""
        try:
            self._served = self._open()
        except (DismecError, OSError, MemoryError) as error:
            reason = " ".join(str(error).split()) or "out of memory"
            _log.error("not reloaded, still serving the old model: %s", reason)
            return False
        _log.info("reloaded %s: %s", self._path, counted(self.model.n_labels, "label"))
        return True

    def reload_others(self) -> None:
        """Make the other processes of the server, if any, reload the model too."""
        if self._marker is not None:
            self._marker.touch()


def _open_warm(path: Path) -> Model:
    """Open the model ready to predict, so no request waits for its weights to be prepared."""
    directory = path.resolve()  # the same throughout, even if a link is moved meanwhile
    with watching() as files:
        model = open_model(directory, check=True)
    model.files = files
    row: Any = TextRows((1, model.n_features))
    if model.n_dense:
        dense = np.zeros((1, model.n_dense), np.float32)
        row = [row, dense] if model.n_features else [dense]
    model.predict_topk(row, 1, threads=1)
    if model.encoder is not None:
        model.predict_topk([""], 1, threads=1)
    if model.damage is not None:
        raise ModelError(model.damage)
    return model


def _best_labels(
    model: Model, X: Any, request: dict[str, Any], allowed: Allowed | None
) -> list[Any]:
    ranked = "probabilities" if request["rank"] == "probability" else "scores"
    how = {"rank": request["rank"], "allowed": allowed}
    labels, ranks = model.predict_topk(X, request["k"], threads=1, **how)
    lists = {"labels": labels.tolist(), ranked: ranks.tolist()}
    if model.calibration is not None and ranked == "scores":
        lists["probabilities"] = model.calibration.probabilities(labels, ranks).tolist()
    least = -np.inf if request["threshold"] is None else request["threshold"]
    rows: list[dict[str, Any]] = []
    for i, places in enumerate(zip(lists["labels"], lists[ranked], strict=True)):
        # Best first, with empty places (label −1) last.
        kept = sum(label >= 0 and rank >= least for label, rank in zip(*places, strict=True))
        row = {key: values[i][:kept] for key, values in lists.items()}
        if model.names is not None:
            row["names"] = [model.names[label] for label in row["labels"]]
        if marked := [label for label in row["labels"] if model.without_rows[label]]:
            row["without_rows"] = marked
        rows.append(row)
    return rows


def _strongest(text: str, pieces: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """Return the pieces of the words with the largest total weight, in text order.

    A word that contributes to a label may occur thousands of times, each adding next to nothing, so
    a word counts as a whole: fully at its first place, half at its second, and so on.
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
    return [pieces[number] for number in sorted(n for _, n in sorted(ranks)[:_HIGHLIGHTS])]


def _json_bytes(answer: Any) -> bytes:
    """Return JSON with null for scores that are not finite: features may be as large as float32."""
    try:
        return json.dumps(answer, allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(answer)).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
