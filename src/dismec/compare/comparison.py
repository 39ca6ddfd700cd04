"""Data and names of systems → accuracy and cost of each."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.compare.process import run_system
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

# In the order of the tables: ours, the paper's, current peers; tuned systems run only if asked for.
_KNOWN = (
    "dismec",
    "dismec-tuned",
    "dismec-best",
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
    *PEERS,
)
SYSTEMS = tuple(name for name in _KNOWN if not name.endswith("-tuned"))
DEPTHS = (1, 3, 5)
_METRICS = tuple(f"{metric}@{k}" for metric in ("P", "nDCG", "PSP") for k in DEPTHS)
assert max(DEPTHS) <= K

_ROWS = "rows-"  # prefix of folders with data for systems

Log = Callable[[str], None]


def check_systems(names: Iterable[str], tuned: bool) -> list[str]:
    """Return the systems to run in table order; raise `DataError` for an unknown name."""
    asked = {name for name in names if name}
    unknown = sorted(asked - {*_KNOWN})
    if unknown:
        raise DataError(f"unknown system {unknown[0]!r}; expected one of {', '.join(_KNOWN)}")
    if not asked:
        raise DataError(f"no systems given; choose from {', '.join(_KNOWN)}")
    return [n for n in _KNOWN if n in asked or (tuned and n.removesuffix("-tuned") in asked)]


def check_folder(folder: Path) -> None:
    """Raise `DataError` for a file in place of the folder for results."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; choose a folder for the results")


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
        pair = aligned(pair)
        train, test = pair.train, pair.test
        store = self.folder / self._digest(pair)
        store.mkdir(parents=True, exist_ok=True)
        counts = np.bincount(train.Y.indices, minlength=train.Y.shape[1])
        truth = Truth.align(test.Y, counts, train.Y.shape[0])
        unknown = truth.label_counts[truth.Y.indices] == 0
        if log and unknown.any():
            log(
                f"{unknown.mean():.1%} of the true labels of test rows have no training rows: "
                "every system misses them"
            )
        reports: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
        with locked(store), tempfile.TemporaryDirectory(dir=store, prefix=_ROWS) as scratch:
            for left in store.glob(f"{_ROWS}*"):  # left by a killed run
                if left.name != Path(scratch).name:
                    rmtree(left, ignore_errors=True)
            for seed in range(self.seeds):
                for name in systems:
                    reports[name].append(self._report(Path(scratch), pair, name, seed, log))
        found = {}
        for name in systems:
            try:
                found[name] = _summary(reports[name], truth, train.Y.shape[1])
            except DataError as error:  # for example a label predicted twice
                found[name] = {"error": f"invalid predictions: {error}"}
        _add_differences(found)
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

    def _digest(self, pair: Pair) -> str:
        """Return a digest that identifies the comparison."""
        digest = hashlib.sha256(f"{self.threads} {pair.tfidf}".encode())
        for part in (pair.train, pair.test):
            digest.update(fingerprint(part.X, part.Y).encode())
        for texts in pair.texts or ():
            for batch in texts.read():
                digest.update("\0".join(batch.texts).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:16]

    def _report(
        self, scratch: Path, pair: Pair, name: str, seed: int, log: Log | None
    ) -> dict[str, Any]:
        """Return the report of a system, or the one stored by an earlier run of the same code."""
        kept = scratch.parent / f"{name}-{seed}.json"
        code = str(self.python or sys.executable) if name in PEERS else _code_digest()
        n_rows = pair.test.X.shape[0]
        with suppress(OSError, ValueError, AttributeError):  # missing or truncated
            report: dict[str, Any] = json.loads(kept.read_text("utf-8"))
            if report["code"] == code and _is_whole(report, n_rows):
                if log:
                    log(f"{name}: reusing the result of {report['date']}")
                return report
        if not any(scratch.iterdir()):
            write_rows(scratch, pair)
        report = run_system(
            name,
            scratch,
            threads=self.threads,
            seed=seed,
            python=self.python,
            limit=self.limit,
            memory=self.memory,
        )
        if "error" not in report and not _is_whole(report, n_rows):
            report = {"error": "predictions do not match the test rows"}
        if "error" not in report:
            report |= {"code": code, "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
            with whole_file(kept) as file:
                file.write(json.dumps(report).encode())
        if log:
            message = report.get("error") or f"trained in {report['train']:.1f} s"
            log(f"{name}: {message}")
        return report


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


def _summary(reports: Sequence[Mapping[str, Any]], truth: Truth, n_labels: int) -> dict[str, Any]:
    """Summarize several training runs of a system; {"error": …} if one of them failed."""
    for report in reports:
        if "error" in report:
            return {"error": report["error"]}
    first = reports[0]
    found: dict[str, Any] = {
        "train_seconds": min(r["train"] for r in reports),
        "save_seconds": min(r["save"] for r in reports),
        "cpu_seconds": min(r["cpu"] for r in reports),
        "peak_bytes": min(r["peak"] for r in reports),
        "model_bytes": first["size"],
        "version": first["version"],
        "note": first["note"],
    }
    if "top" not in first:
        return found
    found["predict_ms"] = 1e3 * min(r["predict"] for r in reports)
    found["single_ms"] = 1e3 * min(r["single"] for r in reports)

    def labels_of(top: Any) -> npt.NDArray[np.int32]:
        labels = np.asarray(top, np.int32)
        labels[(labels < 0) | (labels >= n_labels)] = -1  # a label that does not exist
        return labels

    def metrics_of(top: npt.NDArray[np.int32]) -> dict[str, float]:
        metrics = truth.metrics(top, DEPTHS)
        return {name: metrics[name] for name in _METRICS}

    tops = [labels_of(r["top"]) for r in reports]
    metrics = [metrics_of(top) for top in tops]
    found |= {name: float(np.mean([m[name] for m in metrics])) for name in _METRICS}
    if len(reports) > 1:
        found["seed_deviation"] = {
            name: float(np.std([m[name] for m in metrics], ddof=1)) for name in _METRICS
        }
    draws = [drawn(truth.Y, top, truth.propensities, DEPTHS) for top in tops]
    # Removed by `_add_differences`.
    found["draws"] = {name: np.mean([d[name] for d in draws], axis=0) for name in _METRICS}
    found["intervals"] = {name: list(interval(d)) for name, d in found["draws"].items()}
    found["groups"] = by_group(truth.Y, tops[0], truth.label_counts, truth.propensities, DEPTHS)
    found["rankings"] = {
        ranking: metrics_of(labels_of(top)) for ranking, top in first["rankings"].items()
    }
    return found


def _add_differences(found: dict[str, dict[str, Any]]) -> None:
    """Add the difference between each system and dismec, with paired intervals."""
    draws = {name: entry.pop("draws") for name, entry in found.items() if "draws" in entry}
    for name, own in draws.items():
        if name != "dismec" and "dismec" in draws:
            found[name]["minus_dismec"] = {
                metric: list(interval(own[metric] - draws["dismec"][metric])) for metric in own
            }


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


def aligned(pair: Pair) -> Pair:
    """Return the same data, checked, with the same columns."""
    rows = [check_X(part.X) for part in (pair.train, pair.test)]
    if not all(X.shape[0] for X in rows):
        raise DataError("no rows to compare systems on")
    n_features = max(X.shape[1] for X in rows)
    train, test = (
        Dataset(check_X(X, n_features), check_Y(part.Y, X.shape[0]), part.names)
        for part, X in zip((pair.train, pair.test), rows, strict=True)
    )
    for part, what in ((train, "training"), (test, "test")):
        if not part.Y.nnz:
            raise DataError(f"no {what} row has a label")
    return pair._replace(train=train, test=test)


def write_rows(folder: Path, pair: Pair) -> Dataset:
    """Write the files that `dismec.compare.worker` reads; return the normalized training rows."""
    train, test = pair.train, pair.test
    transform = Transform.fit(train.X, tfidf=pair.tfidf, bias=0)
    rows, test_rows = (transform.apply(part.X)[:, :-1] for part in (train, test))
    for name, matrix in (("train_X", rows), ("train_Y", train.Y), ("test_X", test_rows)):
        whole: Any = sp.csr_matrix(matrix)
        sp.save_npz(folder / f"{name}.npz", whole, compressed=False)
    normalized = Dataset(rows, train.Y)
    save_data(normalized, folder / "train.txt")
    for name, texts, part in zip(("train", "test"), pair.texts or (), (train, test), strict=False):
        _write_lines(folder / f"{name}.ft", texts.read(), part.Y)
    return normalized


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
