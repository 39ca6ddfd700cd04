"""Data and names of systems → accuracy and cost of each."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.compare.process import SystemProcess
from dismec.compare.worker import PEERS, K
from dismec.cpu import kernels
from dismec.data.corpus import TextBatch, Texts
from dismec.data.dataset import Dataset, save_data
from dismec.data.files import whole_file
from dismec.data.matrices import check_X, check_Y
from dismec.data.training_file import fingerprint
from dismec.errors import DataError
from dismec.features.text_rows import learn, weighted_rows
from dismec.features.transform import Transform
from dismec.features.vocabulary import TextParams
from dismec.measure.breakdown import by_group
from dismec.measure.metrics import Truth, drawn, interval
from dismec.model.directory import locked

__all__ = [
    "DEPTHS",
    "SYSTEMS",
    "TUNED",
    "Comparison",
    "Pair",
    "RowFiles",
    "aligned",
    "check_folder",
    "check_systems",
    "pair_of_texts",
    "write_rows",
]

# In the order of the tables: ours, the paper's, current peers.
SYSTEMS = (
    "dismec",
    "dismec-refined",
    "dismec-calibrated",
    "dismec-auto",
    "dismec-l1",
    "fastxml",
    "sleec",
    "leml",
    "robustxml",
    "lpsr-nb",
    "lpsr-ovr",
    "pd-sparse",
    "plt",
    "xr-linear",
    "parabel",
    "bonsai",
    "liblinear",
    "sklearn",
    "fasttext",
)
TUNED = {
    "dismec": "dismec-tuned",
    "plt": "plt-tuned",
    "xr-linear": "xr-linear-tuned",
    "fasttext": "fasttext-tuned",
}
DEPTHS = (1, 3, 5)
_METRICS = ("P", "nDCG", "PSP")
assert max(DEPTHS) <= K

_STORE = re.compile("[0-9a-f]{16}")  # name of the folder of one comparison
_ROWS = "rows-"  # prefix of folders with data for systems

_READ_TEXT = ("parabel", "bonsai")
_READ_LINES = ("fasttext", "fasttext-tuned")

Log = Callable[[str], None]


def check_systems(names: Iterable[str], tuned: bool) -> list[str]:
    """Return the systems to run in table order; raise `DataError` for an unknown name."""
    asked = {name for name in names if name}
    known = (*SYSTEMS, *TUNED.values())
    unknown = sorted(asked - {*known})
    if unknown:
        raise DataError(f"unknown system {unknown[0]!r}; expected one of {', '.join(known)}")
    if not asked:
        raise DataError(f"no systems given; choose from {', '.join(known)}")
    result = []
    for name in SYSTEMS:
        if name in asked:
            result.append(name)
        more = TUNED.get(name)
        if more and (more in asked or (tuned and name in asked)):
            result.append(more)
    return result


def check_folder(folder: Path) -> None:
    """Raise `DataError` if a folder for results contains anything else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise DataError(f"{folder} is a file; choose a folder for the results")
    try:
        others = [path.name for path in folder.iterdir() if not _STORE.fullmatch(path.name)]
    except OSError as error:
        raise DataError(f"{folder}: cannot hold results: {error.strerror}") from None
    if others:
        raise DataError(
            f"{folder} contains files that are not results of a comparison, such as "
            f"{min(others)!r}: choose another folder"
        )


@dataclass(frozen=True)
class Comparison:
    """A comparison of systems on the same rows.

    Attributes
    ----------
    folder
        Where to store reports of finished systems; a second run resumes from there.
    seeds
        How often to train each system, with seeds 0, 1, …; metrics are means, times and memory are
        minimums.
    threads
        Threads for training; prediction uses one.
    limit
        Time limit in seconds for one training run with its predictions.
    memory
        Memory limit of a system in bytes; by default nine tenths of the machine's memory.
    python
        The Python of an environment with the peers installed; by default the caller's.
    """

    folder: Path
    seeds: int = 1
    threads: int = 1
    limit: float | None = None
    memory: int | None = None
    python: Path | None = None

    def run(self, pair: Pair, systems: Sequence[str], log: Log | None = None) -> dict[str, Any]:
        """Train and predict, and return the results.

        Systems take turns: each is trained with the first seed before any is trained with the
        second.

        Returns
        -------
        dict
            ``{"data": {…}, "systems": {name: {"P@1": …, …}}}``; the entries are described in
            ``docs/howto/comparing.md``.
        """
        check_systems(systems, tuned=False)
        train, test = aligned(pair)
        store = self.folder / self._digest(pair, train, test)
        store.mkdir(parents=True, exist_ok=True)
        truth = _truth_of(train, test, log)
        reports: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
        with locked(store), tempfile.TemporaryDirectory(dir=store, prefix=_ROWS) as scratch:
            for left in store.glob(f"{_ROWS}*"):  # left by a killed run
                if left.name != Path(scratch).name:
                    rmtree(left, ignore_errors=True)
            rows = RowFiles(Path(scratch), train, test, pair)
            for seed in range(self.seeds):
                for name in systems:
                    reports[name].append(self._report(store, rows, name, seed, log))
        judged = _Evaluator(truth, train.Y.shape[1])
        found = {}
        for name in systems:
            try:
                found[name] = judged.summary(reports[name])
            except DataError as error:  # for example a label predicted twice
                found[name] = {"error": f"invalid predictions: {error}"}
        judged.compare(found)
        return {
            "data": {
                "rows": train.X.shape[0],
                "test rows": test.X.shape[0],
                "features": train.X.shape[1],
                "labels": int(np.count_nonzero(truth.label_counts)),
                "threads": self.threads,
                "seeds": self.seeds,
            },
            "systems": found,
        }

    def _digest(self, pair: Pair, train: Dataset, test: Dataset) -> str:
        """Return a digest that identifies the comparison."""
        digest = hashlib.sha256(f"{self.threads} {pair.tfidf}".encode())
        for part in (train, test):
            digest.update(fingerprint(part.X, part.Y).encode())
        for texts in pair.texts or ():
            for batch in texts.read():
                digest.update("\0".join(batch.texts).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:16]

    def _report(
        self, store: Path, rows: RowFiles, name: str, seed: int, log: Log | None
    ) -> dict[str, Any]:
        """Return the report of a system, or the one stored by an earlier run of the same code."""
        kept = store / f"{name}-{seed}.json"
        code = str(self.python or sys.executable) if name in PEERS else _code_digest()
        with suppress(OSError, ValueError, AttributeError):  # missing or truncated
            report: dict[str, Any] = json.loads(kept.read_text("utf-8"))
            if report["code"] == code and _is_whole(report, rows.n_test_rows):
                if log:
                    log(f"{name}: reusing the result of {report['date']}")
                return report
        rows.write(name)
        process = SystemProcess(
            name,
            rows.folder,
            threads=self.threads,
            seed=seed,
            python=self.python,
            limit=self.limit,
            memory=self.memory,
        )
        with closing(process):
            report = process.report()
        if "error" not in report and not _is_whole(report, rows.n_test_rows):
            report = {"error": "predictions do not match the test rows"}
        if "error" not in report:
            report |= {"code": code, "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
            with whole_file(kept) as file:
                file.write(json.dumps(report).encode())
        if log:
            message = report.get("error") or f"trained in {report['train']:.1f} s"
            log(f"{name}: {message}")
        return report


def _truth_of(train: Dataset, test: Dataset, log: Log | None) -> Truth:
    """Return the true labels of the test rows; log how many of them no system can find."""
    counts = np.bincount(train.Y.indices, minlength=train.Y.shape[1])
    truth = Truth.align(test.Y, counts, train.Y.shape[0])
    unknown = truth.label_counts[truth.Y.indices] == 0
    if log and unknown.any():
        log(
            f"{unknown.mean():.1%} of the true labels of test rows have no training rows: every "
            "system misses them"
        )
    return truth


def _is_whole(report: Mapping[str, Any], n_rows: int) -> bool:
    """Return whether a report has a time, and predictions for all rows or for none."""
    top = report.get("top")
    return isinstance(report.get("train"), float) and (
        top is None or (len(top) == n_rows and all(len(row) == K for row in top))
    )


@cache
def _code_digest() -> str:
    """Return a digest of this package's sources and native modules."""
    digest = hashlib.sha256()
    folder = Path(__file__).resolve().parents[1]
    for path in sorted([*folder.rglob("*.py"), *Path(kernels.__file__).parent.glob("_native*.so")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class _Evaluator:
    """Turns reports into metrics."""

    def __init__(self, truth: Truth, n_labels: int) -> None:
        self._truth, self._n_labels = truth, n_labels
        self._draws: dict[str, Mapping[str, npt.NDArray[np.float64]]] = {}

    def summary(self, reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Summarize several training runs of a system; {"error": …} if one of them failed."""
        failed = next((report["error"] for report in reports if "error" in report), None)
        if failed is not None:
            return {"error": failed}
        found: dict[str, Any] = {
            "train_seconds": min(r["train"] for r in reports),
            "save_seconds": min(r["save"] for r in reports),
            "cpu_seconds": min(r["cpu"] for r in reports),
            "peak_bytes": min(r["peak"] for r in reports),
            "model_bytes": reports[0]["size"],
            "version": reports[0]["version"],
            "note": reports[0]["note"],
        }
        if "top" not in reports[0]:
            return found
        found["predict_ms"] = 1e3 * min(r["predict"] for r in reports)
        found["single_ms"] = 1e3 * min(r["single"] for r in reports)
        tops = [self._checked(r["top"]) for r in reports]
        metrics = [self._truth.metrics(top, DEPTHS) for top in tops]
        names = [f"{metric}@{k}" for metric in _METRICS for k in DEPTHS]
        found |= {name: float(np.mean([m[name] for m in metrics])) for name in names}
        if len(reports) > 1:
            found["seed_deviation"] = {
                name: float(np.std([m[name] for m in metrics], ddof=1)) for name in names
            }
        draws = [drawn(self._truth.Y, top, self._truth.propensities, DEPTHS) for top in tops]
        mean = {name: np.mean([d[name] for d in draws], axis=0) for name in names}
        found["draws"] = mean  # removed by `compare`
        found["intervals"] = {name: list(interval(mean[name])) for name in names}
        truth = self._truth
        groups = by_group(truth.Y, tops[0], truth.label_counts, truth.propensities, DEPTHS)
        found["groups"] = [
            {key: group[key] for key in ("frequency", "labels", *(f"P@{k}" for k in DEPTHS),
                                         *(f"R@{k}" for k in DEPTHS))}
            for group in groups
        ]  # fmt: skip
        found["rankings"] = {
            ranking: {
                name: truth.metrics(self._checked(top), DEPTHS)[name]
                for name in (f"{metric}@{k}" for metric in _METRICS for k in DEPTHS)
            }
            for ranking, top in reports[0]["rankings"].items()
        }
        return found

    def compare(self, found: dict[str, dict[str, Any]]) -> None:
        """Add the difference between each system and dismec, with paired intervals."""
        draws = {name: entry.pop("draws") for name, entry in found.items() if "draws" in entry}
        for name, own in draws.items():
            if name != "dismec" and "dismec" in draws:
                found[name]["minus_dismec"] = {
                    metric: list(interval(own[metric] - draws["dismec"][metric])) for metric in own
                }

    def _checked(self, top: Any) -> npt.NDArray[np.int32]:
        """Return the labels of a report; a system may predict labels that do not exist."""
        labels = np.asarray(top, np.int32)
        labels[(labels < 0) | (labels >= self._n_labels)] = -1
        return labels


class Pair(NamedTuple):
    """The training and test data of a comparison."""

    train: Dataset  # rows may have any norm
    test: Dataset
    texts: tuple[Texts, Texts] | None = None  # the texts that X was made from, if any
    tfidf: bool = False  # whether X holds term counts


def pair_of_texts(train: Texts, test: Texts, *, threads: int | None = None) -> Pair:
    """Convert texts to data: terms and labels come from the training texts, rows from both."""
    vocabulary, names = learn(train, TextParams(), threads=threads)
    numbers = {name: number for number, name in enumerate(names)}
    parts = [weighted_rows(part, vocabulary, numbers, threads=threads)[0] for part in (train, test)]
    return Pair(parts[0], parts[1], (train, test), tfidf=True)


def aligned(pair: Pair) -> tuple[Dataset, Dataset]:
    """Return the training and test data, checked, with the same columns."""
    X, X_test = check_X(pair.train.X), check_X(pair.test.X)
    if X.shape[0] == 0 or X_test.shape[0] == 0:
        raise DataError("no rows to compare systems on")
    n_features = max(X.shape[1], X_test.shape[1])
    Y, Y_test = (
        check_Y(part.Y, rows.shape[0]) for part, rows in ((pair.train, X), (pair.test, X_test))
    )
    if not Y.nnz:
        raise DataError("no training row has a label")
    if not Y_test.nnz:
        raise DataError("no test row has a label")
    return (
        Dataset(check_X(X, n_features), Y, pair.train.names),
        Dataset(check_X(X_test, n_features), Y_test, pair.test.names),
    )


class RowFiles:
    """The files that `dismec.compare.worker` reads, written when the first system needs them."""

    def __init__(self, folder: Path, train: Dataset, test: Dataset, pair: Pair) -> None:
        self.folder = folder
        self._train, self._test, self._pair = train, test, pair
        self._normal: Dataset | None = None
        self.n_test_rows = test.X.shape[0]

    def write(self, system: str) -> None:
        """Write the files that a system reads."""
        if self._normal is None:
            self._normal = write_rows(self.folder, self._train, self._test, self._pair.tfidf)
        if system in _READ_TEXT and not (self.folder / "train.txt").exists():
            save_data(self._normal, self.folder / "train.txt")
        if system in _READ_LINES and self._pair.texts:
            for part, texts, Y in zip(
                ("train", "test"), self._pair.texts, (self._train.Y, self._test.Y), strict=True
            ):
                _write_lines(self.folder / f"{part}.ft", texts.read(), Y)


def write_rows(folder: Path, train: Dataset, test: Dataset, tfidf: bool = False) -> Dataset:
    """Write normalized rows of both parts; return the training part."""
    transform = Transform.fit(train.X, tfidf=tfidf, bias=0)
    rows, test_rows = (transform.apply(part.X)[:, :-1] for part in (train, test))
    for part, matrix in (("train_X", rows), ("train_Y", train.Y), ("test_X", test_rows)):
        whole: Any = sp.csr_matrix(matrix)
        sp.save_npz(folder / f"{part}.npz", whole, compressed=False)
    return Dataset(rows, train.Y)


def _write_lines(path: Path, batches: Iterable[TextBatch], Y: Any) -> None:
    """Write one text per line with its label numbers, in fastText's format."""
    row = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for batch in batches:
            for text in batch.texts:
                labels = Y.indices[Y.indptr[row] : Y.indptr[row + 1]].tolist()
                words = [word for word in text.split() if not word.startswith("__label__")]
                file.write(" ".join([*(f"__label__{label}" for label in labels), *words]) + "\n")
                row += 1
