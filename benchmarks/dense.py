"""Dense features: time and memory against PECOS and LinearSVC; exits with 1 if below the aim.

    python benchmarks/dense.py --python PEERS_PYTHON

Generates embeddings whose labels are directions in groups, by default 50,000 rows × 768 with 2,000
labels, and trains all labels, each system in its own process with one thread. PECOS gets
the array as it is, since its XR-Linear accepts dense arrays. LinearSVC trains only some labels, and
its time is extrapolated. Without --python, PECOS is looked for in this environment.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from machine import print_heading

TIMES_LINEAR_SVC = 30  # minimum speedup over LinearSVC
MATRICES, FIXED = 1.3, 300e6  # memory bound: this many times the matrix, plus these bytes
TEST_ROWS = 5000

OURS = """
import json, sys, time
import numpy as np, scipy.sparse as sp
from dismec.training.train import fit
E, Y = np.load("E.npy", mmap_mode="r"), sp.load_npz("Y.npz")
begin = time.process_time()
model = fit([np.asarray(E)], Y, threads=1)
seconds = time.process_time() - begin
"""
PECOS = """
import json, sys, time
import numpy as np, scipy.sparse as sp
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel
E, Y = np.load("E.npy"), sp.csr_matrix(sp.load_npz("Y.npz"), dtype=np.float32)
E /= np.linalg.norm(E, axis=1, keepdims=True)
begin = time.process_time()
embedding = LabelEmbeddingFactory.create(Y, E, method="pifa", threads=1)
clusters = Indexer.gen(embedding, threads=1, seed=0)
model = XLinearModel.train(E, Y, C=clusters, threads=1)
seconds = time.process_time() - begin
"""
PEAK = """
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        peak = int(line.split()[1]) * 1024
test = np.load("test.npy")
"""
OUR_BEST = """
begin = time.process_time()
best = model.predict_topk([test], 1, threads=1)[0][:, 0].tolist()
"""
# The fast path of its documentation; dense rows need weights by column.
PECOS_BEST = """
model.save("xr")
model = XLinearModel.load("xr", is_predict_only=True, weight_matrix_type="CSC")
test /= np.linalg.norm(test, axis=1, keepdims=True)
begin = time.process_time()
best = model.predict(test, only_topk=1, threads=1).indices.tolist()
"""
REPORT = """
predicting = time.process_time() - begin
print(json.dumps({"seconds": seconds, "peak": peak, "predicting": predicting, "best": best}))
"""


def embeddings(
    rows: int, width: int, labels: int, noise: float, seed: int = 0
) -> tuple[np.ndarray, sp.csr_array]:
    """Generate rows around the sum of their labels' directions, which are near those of 64 groups.

    Label frequencies follow a power law, as in real data, and the rows have a mean and a decaying
    spectrum, like real embeddings.
    """
    rng = np.random.default_rng(seed)
    groups = rng.standard_normal((64, width), dtype=np.float32)
    own = rng.standard_normal((labels, width), dtype=np.float32)
    directions = 0.7 * (groups[rng.integers(0, 64, labels)] + own)
    chances = np.arange(1, labels + 1) ** -0.8
    counts = rng.integers(1, 6, rows)
    of = rng.choice(labels, counts.sum(), p=chances / chances.sum())
    Y = sp.csr_array((np.ones(len(of)), (np.repeat(np.arange(rows), counts), of)), (rows, labels))
    Y.sum_duplicates()
    Y.data[:] = 1
    E: Any = Y.astype(np.float32) @ directions / np.sqrt(counts, dtype=np.float32)[:, None]
    for begin in range(0, rows, 4096):
        part = E[begin : begin + 4096]
        part += np.float32(noise) * rng.standard_normal(part.shape, dtype=np.float32)
    E *= 1 / np.sqrt(1 + np.arange(width, dtype=np.float32) / 50)
    E += 0.5 * rng.standard_normal(width, dtype=np.float32)
    return E, Y.astype(np.uint8)


def run(code: str, best: str, folder: Path, python: str) -> dict[str, Any]:
    command = [python, "-c", code + PEAK + best + REPORT]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def linear_svc_seconds(E: np.ndarray, Y: Any, n_labels: int) -> float:
    """Estimate the CPU seconds for all labels from a sample over all frequencies."""
    from sklearn.svm import LinearSVC

    E = E / np.linalg.norm(E, axis=1, keepdims=True)
    some = np.linspace(0, Y.shape[1] - 1, n_labels, dtype=int)
    begin = time.process_time()
    for label in some:
        LinearSVC().fit(E, Y[:, [label]].toarray().ravel())
    return (time.process_time() - begin) / n_labels * Y.shape[1]


def speed(args: argparse.Namespace) -> bool:
    E, Y = embeddings(args.rows + TEST_ROWS, args.width, args.labels, args.noise)
    test, truth = E[args.rows :], Y[args.rows :].toarray()
    E, Y = np.ascontiguousarray(E[: args.rows]), Y[: args.rows]
    print(f"{args.rows:,} rows × {args.width}, {args.labels:,} labels, noise {args.noise:g}\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "E.npy", E)
        np.save(folder / "test.npy", test)
        sp.save_npz(folder / "Y.npz", Y)
        found = {"dismec": run(OURS, OUR_BEST, folder, sys.executable)}
        try:
            found["PECOS XR-Linear"] = run(PECOS, PECOS_BEST, folder, args.python)
        except subprocess.CalledProcessError:
            print("PECOS is not installed: name a Python that has it (--python)\n")
    print(f"{'':16} {'CPU s':>8} {'peak MB':>8} {'P@1':>7} {'ms per row':>11}")
    for system, told in found.items():
        hit = 100 * truth[np.arange(len(truth)), told["best"]].mean()
        predicting = 1000 * told["predicting"] / len(truth)
        peak = told["peak"] / 1e6
        print(f"{system:16} {told['seconds']:8.1f} {peak:8.0f} {hit:7.2f} {predicting:11.3f}")
    ours = found["dismec"]
    good = ours["peak"] <= MATRICES * E.nbytes + FIXED
    print(f"\nthe matrix takes {E.nbytes / 1e6:.0f} MB")
    if "PECOS XR-Linear" in found:
        good = good and ours["seconds"] <= found["PECOS XR-Linear"]["seconds"]
    if args.svc_labels:
        seconds = linear_svc_seconds(E, Y, args.svc_labels)
        ratio = seconds / ours["seconds"]
        print(f"LinearSVC, from {args.svc_labels} labels: {seconds:.0f} CPU s, {ratio:.0f} times")
        good = good and ratio >= TIMES_LINEAR_SVC
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--labels", type=int, default=2000)
    parser.add_argument("--noise", type=float, default=3.0)
    parser.add_argument("--python", default=sys.executable, help="The Python that has PECOS.")
    parser.add_argument("--svc-labels", type=int, default=8, help="Labels for LinearSVC; 0: none.")
    args = parser.parse_args()
    print_heading("scikit-learn")
    return 0 if speed(args) else 1


if __name__ == "__main__":
    sys.exit(main())
