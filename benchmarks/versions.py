"""Another version of dismec against this one: training, prediction and serving, in one run.

    python benchmarks/versions.py OTHER_PYTHON     # the Python of an environment with the other one

The versions take turns, each run in its own process, and the best run of each counts. Only what
both have is used: the public functions, the command line, HTTP. Exits with 1 if this version is
slower than the other by more than `NOISE` in any measurement, or if their predictions differ.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import data
from machine import print_heading

NOISE = 1.05
_WORK = """
import hashlib, json, sys, time
import dismec
train, test = (dismec.load_data(path) for path in sys.argv[1:3])
begin = time.perf_counter()
model = dismec.train(train.X, train.Y, sys.argv[3], threads=2, overwrite=True)
trained = time.perf_counter() - begin
best = []
for threads in (1, 1, 1):
    begin = time.perf_counter()
    top, scores = model.predict_topk(test.X, 5, threads=threads)
    best.append(time.perf_counter() - begin)
print(json.dumps({
    "training, s": trained,
    "prediction, ms per row on one core": 1e3 * min(best) / test.X.shape[0],
    "answers": hashlib.sha256(top.tobytes() + scores.tobytes()).hexdigest(),
}))
"""


def measured(python: str, name: str, model: Path) -> dict[str, float | str]:
    files = [str(data.find(name, part)) for part in ("train", "test")]
    command = [python, "-c", _WORK, *files, str(model)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(ran.stdout)


def served(python: str, model: Path, body: bytes, seconds: float) -> float:
    """Return the median milliseconds per request, over one connection that is kept open."""
    command = [python, "-m", "dismec", "serve", str(model), "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = int(server.stdout.readline().rpartition(":")[2])
            connection = http.client.HTTPConnection("127.0.0.1", port)
            times, end = [], time.perf_counter() + seconds
            while time.perf_counter() < end:
                begin = time.perf_counter()
                connection.request("POST", "/predict", body)
                assert connection.getresponse().read()
                times.append(time.perf_counter() - begin)
        finally:
            server.terminate()
    return 1e3 * sorted(times)[len(times) // 2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", help="the Python of an environment with the other version")
    parser.add_argument("--set", default="eurlex-4k")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print_heading()
    best: dict[str, dict[str, float]] = {"this": {}, "other": {}}
    answers = set()
    row = data.load(options.set, "test").X[[0]]
    pairs = [[int(f), float(v)] for f, v in zip(row.indices, row.data, strict=True)]
    body = json.dumps({"features": pairs}).encode()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.runs):
            for who, python in (("this", sys.executable), ("other", options.other)):
                model = Path(folder) / who
                found = measured(python, options.set, model)
                answers.add(found.pop("answers"))
                found["serving one row, ms"] = served(python, model, body, 4.0)
                for what, value in found.items():
                    best[who][what] = min(value, best[who].get(what, value))
    slower = False
    for what, value in best["this"].items():
        ratio = value / best["other"][what]
        slower |= ratio > NOISE
        print(f"{what}: {value:.3f}, other {best['other'][what]:.3f}, ratio {ratio:.3f}")
    print("predictions are", "the same" if len(answers) == 1 else "NOT the same")
    return int(slower or len(answers) > 1)


if __name__ == "__main__":
    sys.exit(main())
