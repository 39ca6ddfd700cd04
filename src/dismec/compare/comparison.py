"""Data and names of systems → what each reaches and takes."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.compare.process import SystemProcess
from dismec.compare.rows import Pair, RowFiles, aligned
from dismec.compare.worker import K
from dismec.data.dataset import fingerprint
from dismec.data.files import whole_file
from dismec.errors import DataError
from dismec.measure.breakdown import by_group
from dismec.measure.intervals import difference, drawn, interval
from dismec.measure.metrics import Truth

__all__ = ["DEPTHS", "SYSTEMS", "TUNED", "Comparison", "check_systems"]

# In the order of tables: ours, the paper's, today's peers.
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
TUNED = {"dismec": "dismec-tuned", "plt": "plt-tuned", "fasttext": "fasttext-tuned"}
DEPTHS = (1, 3, 5)
_METRICS = ("P", "nDCG", "PSP")
assert max(DEPTHS) <= K

News = Callable[[str], None]


def check_systems(names: Iterable[str], tuned: bool) -> list[str]:
    """The systems to run, in the order of tables; `DataError` for a name that is not known."""
    asked = set(names)
    unknown = sorted(asked - {*SYSTEMS, *TUNED.values()})
    if unknown:
        raise DataError(f"there is no system {unknown[0]!r}; there are {', '.join(SYSTEMS)}")
    result = []
    for name in SYSTEMS:
        if name in asked:
            result.append(name)
        more = TUNED.get(name)
        if more and (more in asked or (tuned and name in asked)):
            result.append(more)
    return result


@dataclass(frozen=True)
class Comparison:
    """Systems on the same rows.

    Attributes
    ----------
    folder
        Where reports of finished systems are kept: a second start goes on from there.
    seeds
        How often each system is trained, with seeds 0, 1, …; metrics are means, and times and
        memory are the least.
    threads
        Of training; rows are predicted with one.
    limit
        Seconds for a training with its predictions.
    memory
        Bytes that a system may have; nine tenths of the machine's by default.
    python
        The Python of an environment that has the peers; the caller's by default.
    """

    folder: Path
    seeds: int = 1
    threads: int = 1
    limit: float | None = None
    memory: int | None = None
    python: Path | None = None

    def run(self, pair: Pair, systems: Sequence[str], news: News | None = None) -> dict[str, Any]:
        """Train and predict, and say what came out.

        Systems take turns: each is trained with the first seed before any is with the second.

        Returns
        -------
        dict
            ``{"data": {…}, "systems": {name: {"P@1": …, …}}}``; what each entry means is in
            ``docs/comparing.md``.
        """
        train, test = aligned(pair)
        digest = hashlib.sha256()
        for part in (train, test):
            digest.update(fingerprint(part.X, part.Y).encode())
        digest.update(f"{self.threads} {pair.tfidf} {version('dismec')}".encode())
        store = self.folder / digest.hexdigest()[:16]
        store.mkdir(parents=True, exist_ok=True)
        reports: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
        with tempfile.TemporaryDirectory(dir=store, prefix="rows-") as scratch:
            rows = RowFiles(Path(scratch), train, test, pair)
            for seed in range(self.seeds):
                for name in systems:
                    reports[name].append(self._report(store, rows, name, seed, news))
        truth = Truth.align(test.Y, np.bincount(train.Y.indices, minlength=train.Y.shape[1]),
                            train.Y.shape[0])  # fmt: skip
        judged = _Judge(truth, train.Y.shape[1])
        found = {name: judged.summary(reports[name]) for name in systems}
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

    def _report(
        self, store: Path, rows: RowFiles, name: str, seed: int, news: News | None
    ) -> dict[str, Any]:
        """The report of a system, or what an earlier start has kept of it."""
        kept = store / f"{name}-{seed}.json"
        try:
            report: dict[str, Any] = json.loads(kept.read_text("utf-8"))
            if isinstance(report.get("train"), float):
                return report
        except (OSError, ValueError, AttributeError):
            pass  # not there, or cut off
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
        if "error" not in report:
            with whole_file(kept) as file:
                file.write(json.dumps(report).encode())
        if news:
            told = report.get("error") or f"trained in {report['train']:.1f} s"
            news(f"{name}: {told}")
        return report


class _Judge:
    """Reports → metrics."""

    def __init__(self, truth: Truth, n_labels: int) -> None:
        self._truth, self._n_labels = truth, n_labels
        self._draws: dict[str, Mapping[str, npt.NDArray[np.float64]]] = {}

    def summary(self, reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What several trainings of a system came to; {"error": …} if one of them failed."""
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
        found["draws"] = mean  # taken out by `compare`
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
        """Add how each system differs from dismec, with paired intervals."""
        draws = {name: entry.pop("draws") for name, entry in found.items() if "draws" in entry}
        for name, own in draws.items():
            if name != "dismec" and "dismec" in draws:
                found[name]["minus_dismec"] = {
                    metric: list(interval(difference(own, draws["dismec"], metric)))
                    for metric in own
                }

    def _checked(self, top: Any) -> npt.NDArray[np.int32]:
        """The labels of a report; a system may name labels that nobody has."""
        labels = np.asarray(top, np.int32)
        labels[(labels < 0) | (labels >= self._n_labels)] = -1
        return labels
