"""A model directory → JSON answers to the bodies of requests; HTTP itself is elsewhere."""

from __future__ import annotations

import json
import logging
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from dismec.errors import DismecError
from dismec.features.text_rows import TextRows
from dismec.model.explanation import highlights
from dismec.model.model import Model
from dismec.model.opening import open_model
from dismec.model.provenance import shown
from dismec.model.topk_model import TopkModel
from dismec.serve.contract import HIGHLIGHTED, HIGHLIGHTS, Contract, Limits
from dismec.serve.queries import parse, text_vocabulary

__all__ = ["NoExplanations", "Service"]

_EXAMPLE_LABELS, _EXAMPLE_WORDS = 2, 8

_log = logging.getLogger(__name__)


class NoExplanations(DismecError):  # noqa: N818  it says what there is not
    """The model explains nothing where it is."""


class Service:
    """The model that is served, for many threads; only `reload` is for one at a time.

    `predict` and `explain` raise `DataError` for a body that does not keep to the contract, and
    `example` if the model takes no texts; both `explain` and `example` raise `NoExplanations` if
    the weights are on a cluster.
    """

    def __init__(self, path: Path, cluster: str | None, limits: Limits) -> None:
        self.name = path.absolute().name
        self.contract = Contract(limits)
        self.version = version("dismec")
        self.model = _open_warm(path, cluster)
        self._path, self._cluster = path, cluster

    def predict(self, body: bytes) -> tuple[bytes, int]:
        """The best labels, with scores exactly as `predict_topk` has them; the number of rows."""
        model = self.model  # one for the whole request, whatever is loaded meanwhile
        X, request = parse("/predict", body, model, self.contract)
        rows = _best_labels(model, X, request)
        answer = {"rows": rows} if "rows" in request else rows[0]
        return json.dumps(answer).encode(), X.shape[0]

    def explain(self, body: bytes) -> bytes:
        """What carried a label's score."""
        model = self._explaining_model()
        X, request = parse("/explain", body, model, self.contract)
        vocabulary = model.vocabulary
        terms = None if vocabulary is None else vocabulary.terms
        explanation = model.explain(X, model.find_label(request["label"]), terms=terms)
        result = explanation.to_dict()
        result["terms"] = result["terms"][: request["limit"]]
        text = request.get("text")
        if text is not None and len(text) <= HIGHLIGHTED and vocabulary is not None:
            marked = highlights(explanation, vocabulary.spans(text))
            result["highlights"] = _strongest(text, marked)
        return json.dumps(result).encode()

    def example(self, _: bytes) -> str:
        """A text of words that speak most for a few labels; frequent labels come up more."""
        model = self._explaining_model()
        vocabulary = text_vocabulary(model)
        rng = np.random.default_rng()
        seen = np.flatnonzero(model.label_counts)
        chances = model.label_counts[seen] / model.label_counts.sum()
        every = TextRows(np.ones((1, model.n_features), np.float32))
        sentences = []
        for label in rng.choice(seen, min(_EXAMPLE_LABELS, len(seen)), replace=False, p=chances):
            words: dict[str, None] = {}  # each once, those that speak most first
            for term in model.explain(every, int(label)).terms:
                new = vocabulary.terms[term.feature].split()
                if term.contribution > 0 and all(word.isalpha() for word in new):
                    words |= dict.fromkeys(new)
                if len(words) >= _EXAMPLE_WORDS:
                    break
            sentences.append(" ".join(rng.permutation(list(words))).capitalize() + ".")
        return " ".join(sentences)

    def describe(self) -> dict[str, Any]:
        """What is served: the answer of ``/model``."""
        model, limits = self.model, self.contract.limits
        manifest, able = model.manifest, model.capabilities
        return {
            "name": self.name,
            "labels": model.n_labels,
            "features": model.n_features,
            "names": model.names is not None,
            "text": able.texts,
            "calibrated": able.probabilities,
            "explanations": able.explanations,
            "weights": model.nnz,
            "params": shown(model.params),
            "training_rows": manifest.n_rows,
            "training_data": manifest.data,
            "trained_by": manifest.dismec,
            "version": self.version,
            "limits": {"body": limits.body, "rows": limits.rows, "k": limits.k},
        }

    def reload(self) -> bool:
        """Switch to the model that is on disk now; False, and a line in the log, if it is bad."""
        try:
            self.model = _open_warm(self._path, self._cluster)
        except (DismecError, OSError, MemoryError) as error:
            reason = " ".join(str(error).split()) or "out of memory"
            _log.error("not reloaded, the old model stays: %s", reason)
            return False
        _log.info("reloaded %s: %d labels", self._path, self.model.n_labels)
        return True

    def _explaining_model(self) -> Model:
        model = self.model
        if not model.capabilities.explanations:
            raise NoExplanations("explanations need the weights, and a cluster holds them")
        return cast(Model, model)


def _open_warm(path: Path, cluster: str | None) -> TopkModel:
    """The model, ready to predict: nobody waits for its weights to be laid out."""
    directory = path.resolve()  # one throughout, if a link is moved meanwhile
    model: TopkModel
    if cluster is None:
        model = open_model(directory, check=True)
    else:
        from dismec.cluster.serving import serve_on_cluster

        model = serve_on_cluster(cluster, directory)
    model.predict_topk(TextRows((1, model.n_features)), 1, threads=1)
    return model


def _best_labels(model: TopkModel, X: sp.csr_array, request: dict[str, Any]) -> list[Any]:
    ranked = "probabilities" if request["rank"] == "probability" else "scores"
    if isinstance(model, Model):
        labels, ranks = model.predict_topk(X, request["k"], rank=request["rank"], threads=1)
    else:
        labels, ranks = model.predict_topk(X, request["k"], threads=1)
    lists = {"labels": labels.tolist(), ranked: ranks.tolist()}
    if model.calibration is not None and ranked == "scores":
        lists["probabilities"] = model.calibration.probabilities(labels, ranks).tolist()
    least = -np.inf if request["threshold"] is None else request["threshold"]
    rows: list[dict[str, Any]] = []
    for i, places in enumerate(zip(lists["labels"], lists[ranked], strict=True)):
        # Best first, and empty places (label −1) last.
        kept = sum(label >= 0 and rank >= least for label, rank in zip(*places, strict=True))
        row = {key: values[i][:kept] for key, values in lists.items()}
        if model.names is not None:
            row["names"] = [model.names[label] for label in row["labels"]]
        rows.append(row)
    return rows


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
