"""The backend: documents → a text model in the project's directory → suggestions.

If the project has an analyzer, it splits documents into words, because it knows the language and
dismec does not stem. The words are joined by spaces into a text for dismec, which counts and
weights terms itself. So the model has its own vocabulary: there is no pickled vectorizer, batches
are counted in threads, and dismec's own commands can read the model. A project without an analyzer
is trained on the words of its documents as they are.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import annif.util
import numpy as np
import scipy.sparse as sp
from annif.backend.backend import AnnifBackend
from annif.exception import (
    ConfigurationException,
    NotInitializedException,
    NotSupportedException,
    OperationFailedException,
)
from annif.suggestion import SuggestionBatch
from scipy.special import expit

from dismec import DismecError, ModelError, TextParams, TrainingParams, open_model, train_text

if TYPE_CHECKING:
    from annif.corpus import Document, DocumentCorpus

    from dismec import Model

__all__ = ["DismecBackend"]

# Where a classifier is certain, scores are about 1 and −1, which become 0.95 and 0.05.
_STEEPNESS = 3.0


class DismecBackend(AnnifBackend):
    """One linear classifier for each subject, trained on all subjects of each document."""

    name = "dismec"

    DEFAULT_PARAMETERS: ClassVar[dict[str, Any]] = {
        "C": 1.0,
        "delta": 0.01,
        "min_df": 1,
        "ngram": 1,
        "refine": False,
        "calibrate": True,
    }

    # Annif does not count a file as a model if its name contains "-train" or starts with "tmp-".
    MODEL = "dismec-model"
    UNFINISHED = "tmp-dismec-model"
    REPLACED = "tmp-dismec-replaced"
    TEXTS = "dismec-train.jsonl.gz"

    _model: Model | None = None
    _subjects: Any = None  # the subject's number in Annif for each label of the model, −1 for none
    _allowed: Any = None
    _threads: int | None = None

    @property
    def model_directory(self) -> Path:
        """The directory of the finished model."""
        return Path(self.datadir, self.MODEL)

    @property
    def is_trained(self) -> bool:
        """Whether there is a finished model; one that is being trained does not count."""
        return self.model_directory.is_dir()

    def initialize(self, parallel: bool = False) -> None:
        """Open the model, unless it is open; its weights are read when they are used."""
        if parallel:  # other processes use the other CPUs
            self._threads = 1
        if self._model is not None:
            return
        if not self.is_trained:
            raise NotInitializedException(
                f"model {self.model_directory} not found", backend_id=self.backend_id
            )
        self.debug(f"loading model from {self.model_directory}")
        try:
            self._use(open_model(self.model_directory))
        except ModelError as error:
            raise OperationFailedException(str(error), backend_id=self.backend_id) from error

    def _use(self, model: Model) -> None:
        """Use a model, without the subjects that are no longer in the vocabulary."""
        by_uri = self.project.subjects.by_uri
        found = [by_uri(uri, warnings=False) for uri in model.names or ()]
        self._subjects = np.array([-1 if number is None else number for number in found], np.int64)
        known = np.flatnonzero(self._subjects >= 0)
        self._allowed = None
        if len(known) < len(found):
            gone = f"{len(found) - len(known):,} of the model's {len(found):,} subjects"
            self.warning(f"no longer in the vocabulary and not suggested: {gone}")
            self._allowed = model.allowed_labels(known)
        self._model = model

    def _train(self, corpus: DocumentCorpus | str, params: dict[str, Any], jobs: int = 0) -> None:
        training, text = self._training_params(params)
        texts = Path(self.datadir, self.TEXTS)
        if isinstance(corpus, str):  # "cached"
            if not texts.exists():
                raise NotInitializedException(
                    "no cached training texts from a previous run", backend_id=self.backend_id
                )
            self.info("Reusing cached training data from previous run.")
        else:
            self._write_texts(corpus, texts)
        self.info("training classifiers")
        unfinished = Path(self.datadir, self.UNFINISHED)
        how: dict[str, Any] = {"threads": jobs or None, "log": self.info}
        try:
            try:  # resumes an interrupted run of the same training
                train_text(texts, unfinished, training, text, **how)
            except ModelError:
                train_text(texts, unfinished, training, text, overwrite=True, **how)
        except DismecError as error:
            raise OperationFailedException(str(error), backend_id=self.backend_id) from error
        self._put_in_place(unfinished)
        self._use(open_model(self.model_directory))

    def _training_params(self, params: dict[str, Any]) -> tuple[TrainingParams, TextParams]:
        try:
            delta = str(params["delta"])
            training = TrainingParams(
                C=float(params["C"]),
                delta=delta if delta == "auto" else float(delta),
                tfidf=True,
                refine=annif.util.boolean(params["refine"]),
                calibrate=annif.util.boolean(params["calibrate"]),
            )
            return training, TextParams(
                word_ngrams=(1, int(params["ngram"])), min_df=int(params["min_df"])
            )
        except ValueError as error:
            raise ConfigurationException(str(error), backend_id=self.backend_id) from error

    def _write_texts(self, corpus: DocumentCorpus, path: Path) -> None:
        """Store the analyzed texts, so that documents are analyzed only once."""
        if corpus.is_empty():
            raise NotSupportedException("Cannot train dismec project with no documents")
        self.info("analyzing documents")
        begun = path.with_name(f"tmp-{path.name}")
        n_texts = 0
        subjects = self.project.subjects
        with gzip.open(begun, "wt", encoding="utf-8", compresslevel=1) as file:
            for document in corpus.documents:
                text = self._words(document)
                if document.subject_set and text.strip():
                    labels = [subjects[number].uri for number in document.subject_set]
                    file.write(json.dumps({"text": text, "labels": labels}) + "\n")
                    n_texts += 1
        if not n_texts:
            begun.unlink()
            raise NotSupportedException(
                "Cannot train dismec project: no document has both text and subjects"
            )
        begun.replace(path)

    def _put_in_place(self, finished: Path) -> None:
        """Replace the old model with the finished one."""
        replaced = Path(self.datadir, self.REPLACED)
        shutil.rmtree(replaced, ignore_errors=True)
        if self.model_directory.exists():
            self.model_directory.rename(replaced)
        finished.rename(self.model_directory)
        shutil.rmtree(replaced, ignore_errors=True)

    def _words(self, document: Document) -> str:
        """Return the text of a document that is passed to dismec."""
        if not self.project.analyzer_spec:
            return str(document.text)
        return " ".join(self.project.analyzer.tokenize_words(document.text))

    def _suggest_batch(self, documents: list[Document], params: dict[str, Any]) -> SuggestionBatch:
        model = self._model
        assert model is not None
        n_subjects = len(self.project.subjects)
        limit = min(int(params["limit"]), model.n_labels)
        rows = model.rows_of([self._words(d) for d in documents], threads=self._threads)
        known = np.flatnonzero(np.diff(rows.indptr))  # a text without known words has no subjects
        found = sp.csr_array((len(documents), n_subjects), dtype=np.float32)
        if limit > 0 and len(known):
            labels, values = model.predict_topk(
                rows[known], limit, allowed=self._allowed, threads=self._threads
            )
            scores = values if model.calibration is not None else expit(_STEEPNESS * values)
            at = np.nonzero((labels >= 0) & (scores > 0))
            cells = (known[at[0]], self._subjects[labels[at]])
            found = sp.csr_array((scores[at], cells), shape=found.shape, dtype=np.float32)
        return SuggestionBatch(found)
