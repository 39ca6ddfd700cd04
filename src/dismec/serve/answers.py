"""A model, rows and what is asked for them → answers as JSON."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from dismec.model.explanation import highlights
from dismec.model.model import Model
from dismec.model.provenance import shown
from dismec.model.topk_model import TopkModel
from dismec.serve.contract import HIGHLIGHTED, HIGHLIGHTS, Limits
from dismec.serve.queries import text_vocabulary

__all__ = ["describe", "example", "explain", "predict"]

_EXAMPLE_LABELS, _EXAMPLE_WORDS = 2, 8


def predict(model: TopkModel, X: sp.csr_array, request: dict[str, Any]) -> bytes:
    """The best labels of the rows as JSON; scores are exactly those of `predict_topk`."""
    if request["rank"] == "probability":  # only of a model that gives probabilities
        labels, ranks = cast(Model, model).predict_proba_topk(X, request["k"], threads=1)
        ranked = "probabilities"
    else:
        labels, ranks = model.predict_topk(X, request["k"], threads=1)
        ranked = "scores"
    lists = {"labels": labels.tolist(), ranked: ranks.tolist()}
    if model.calibration is not None and ranked == "scores":
        lists["probabilities"] = model.calibration.probabilities(labels, ranks).tolist()
    least = -np.inf if request["threshold"] is None else request["threshold"]
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
    return json.dumps({"rows": rows} if "rows" in request else rows[0]).encode()


def explain(model: Model, X: sp.csr_array, request: dict[str, Any]) -> bytes:
    """What carried a label's score, as JSON.

    Raises
    ------
    DataError
        If the model has no such label, or never saw it.
    """
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
    vocabulary = text_vocabulary(model)
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
            new = vocabulary.terms[term.feature].split()
            if term.contribution > 0 and all(word.isalpha() for word in new):
                words |= dict.fromkeys(new)
            if len(words) >= _EXAMPLE_WORDS:
                break
        sentences.append(" ".join(rng.permutation(list(words))).capitalize() + ".")
    return " ".join(sentences)


def describe(model: TopkModel, name: str, limits: Limits, version: str) -> dict[str, Any]:
    """What is served: the answer of ``/model``."""
    manifest, able = model.manifest, model.capabilities
    return {
        "name": name,
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
        "version": version,
        "limits": {"body": limits.body, "rows": limits.rows, "k": limits.k},
    }
