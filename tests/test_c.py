"""Predictions from C: `native/c`, compiled and run."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from conftest import random_problem, related, train_unfinished
from dismec import TrainingParams, open_model, train
from dismec.cpu import kernels

ROOT = Path(__file__).resolve().parents[1]
# Runs programs of another architecture, if the tests are for one.
EMULATOR = os.environ.get("DISMEC_EMULATOR", "").split()

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not on the path"),
]


def run(*command, **options):
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=True, **options
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The directory with the library and the example, a program in plain C."""
    build = tmp_path_factory.mktemp("c")
    quick = ("-DCMAKE_CXX_FLAGS_RELEASE=-O0", "-DCMAKE_CXX_FLAGS=-Werror")
    run("cmake", "-S", ROOT / "native" / "c", "-B", build, "-DCMAKE_C_FLAGS=-Werror", *quick)
    run("cmake", "--build", build)
    return build


@pytest.fixture(scope="module")
def library(built):
    loaded = ctypes.CDLL(str(built / "libdismec.so"))
    loaded.dismec_open.restype = ctypes.c_void_p
    loaded.dismec_error.restype = ctypes.c_char_p
    loaded.dismec_label_name.restype = ctypes.c_void_p
    return loaded


class Opened:
    """A model as a C program uses it."""

    def __init__(self, library, path):
        self.library = library
        self.handle = ctypes.c_void_p(library.dismec_open(os.fsencode(path)))
        if not self.handle:
            raise ValueError(library.dismec_error().decode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.library.dismec_close(self.handle)

    def call(self, name, features, values, *args):
        features = np.asarray(features, np.int32)
        values = np.asarray(values, np.float32)
        row = (features.ctypes, values.ctypes, ctypes.c_size_t(len(features)))
        status = getattr(self.library, name)(self.handle, *row, *args)
        if status < 0:
            raise ValueError(self.library.dismec_error().decode())
        return status

    def topk(self, features, values, k):
        labels, scores = np.empty(max(k, 0), np.int32), np.empty(max(k, 0), np.float32)
        found = self.call("dismec_predict", features, values, k, labels.ctypes, scores.ctypes)
        return labels, scores, found

    def scores(self, features, values, n_labels):
        scores = np.empty(n_labels, np.float32)
        self.call("dismec_scores", features, values, scores.ctypes)
        return scores


def rows_of(X):
    for i in range(X.shape[0]):
        own = slice(X.indptr[i], X.indptr[i + 1])
        yield X.indices[own], X.data[own]


@pytest.mark.parametrize(
    ("precision", "options", "bounded_rows", "k"),
    [
        ("float16", {}, 1 << 14, 5),
        ("float32", {"tfidf": True}, 1 << 14, 100),
        ("float8", {"normalize": False, "bias": 0.5}, 1 << 14, 5),
        ("float16", {"tfidf": True, "delta": 0.2}, 0, 7),
        ("float8", {}, 0, 5),
        ("float16", {"sqrt": True, "tfidf": True}, 1 << 14, 5),
    ],
)
def test_c_gives_the_labels_and_scores_of_python_bit_for_bit(
    library, tmp_path, precision, options, bounded_rows, k
):
    X, Y = random_problem(labels=60)
    Y = Y[:, [*range(60), 3]]  # two labels with the same rows share their weights
    untrained = Y.tolil()
    untrained[:, 7] = 0
    params = TrainingParams(precision=precision, **options)
    with (
        mock.patch.object(kernels, "bounded_rows", bounded_rows),
        mock.patch.object(kernels, "shard_rows", 25),
    ):
        train(X, untrained.tocsr(), tmp_path / "model", params)
    model = open_model(tmp_path / "model")
    assert len(model.shards) > 1
    assert (model.shards[0].ceilings is not None) == (bounded_rows == 0)
    labels, scores = model.predict_topk(X[:40], k)
    everything = model.decision_function(X[:40])
    with Opened(library, tmp_path / "model") as opened:
        for i, row in enumerate(rows_of(X[:40])):
            found = opened.topk(*row, k)
            np.testing.assert_array_equal(found[0], labels[i])
            np.testing.assert_array_equal(found[1], scores[i])
            assert found[2] == np.count_nonzero(labels[i] >= 0)
            np.testing.assert_array_equal(opened.scores(*row, model.n_labels), everything[i])


def test_the_example_prints_the_names_and_scores_of_the_best_labels(built, text_files):
    model = open_model(text_files / "plain")
    lines = (text_files / "texts.jsonl").read_text().splitlines()[:20]
    texts = [json.loads(line)["text"] for line in lines]
    X = model.vocabulary.rows(texts)
    rows = [" ".join(f"{f}:{v:.9g}" for f, v in zip(*row, strict=True)) for row in rows_of(X)]
    out = run(*EMULATOR, built / "example", text_files / "plain", 3, input="\n".join(rows))
    labels, scores = model.predict_topk(X, 3)
    expected = [
        "\t".join(
            f"{model.names[label]} {score:.9g}"
            for label, score in zip(labels[i], scores[i], strict=True)
        )
        for i in range(len(texts))
    ]
    assert out.stdout.splitlines() == expected


def test_threads_of_a_program_share_a_model(library, tmp_path, problem_data):
    X, Y = problem_data
    model = train(X, Y, tmp_path / "model")
    labels, _ = model.predict_topk(X, 5)
    with Opened(library, tmp_path / "model") as opened, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda row: opened.topk(*row, 5)[0], rows_of(X)))
    np.testing.assert_array_equal(found, labels)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "model"
    X, Y = random_problem(rows=60, features=20, labels=6, density=0.2)
    train(X, Y, path)
    return path


@pytest.mark.parametrize(
    ("features", "values", "k", "reason"),
    [
        ([3, 3], [1, 1], 5, "features must be in strictly ascending order"),
        ([4, 3], [1, 1], 5, "features must be in strictly ascending order"),
        ([-1], [1], 5, "index out of range"),
        ([20], [1], 5, "index out of range"),
        ([3], [np.nan], 5, "a value is not a finite number"),
        ([3], [np.inf], 5, "a value is not a finite number"),
        ([3], [1], 0, "k must be at least 1"),
    ],
)
def test_a_row_that_cannot_be_scored_is_refused_with_a_reason(
    library, small, features, values, k, reason
):
    with Opened(library, small) as opened:
        with pytest.raises(ValueError, match=reason):
            opened.topk(features, values, k)
        assert opened.topk([3], [1], 5)[2] == 5  # the model still works


def test_a_row_without_features_is_ranked_by_the_bias(library, small):
    expected = open_model(small).predict_topk(np.zeros((1, 20), np.float32), 6)
    with Opened(library, small) as opened:
        labels, scores, _ = opened.topk([], [], 6)
    np.testing.assert_array_equal(labels, expected[0][0])
    np.testing.assert_array_equal(scores, expected[1][0])


def test_models_that_c_does_not_support_are_refused_with_a_reason(library, tmp_path):
    train(*related(), tmp_path / "refined", TrainingParams(refine=True))
    X, Y = random_problem(rows=60, features=20, labels=6, density=0.2)
    train_unfinished(X, Y, tmp_path / "unfinished")
    train([X, X.toarray()[:, :3]], Y, tmp_path / "dense")
    (tmp_path / "none").mkdir()
    shutil.copytree(tmp_path / "dense", tmp_path / "other")
    manifest = tmp_path / "other" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 3'))
    for path, reason in [
        (tmp_path / "refined", "manifest.json: refined models cannot be used from C"),
        (tmp_path / "unfinished", "manifest.json: training of this model has not finished"),
        (tmp_path / "dense", "manifest.json: models with dense features cannot be used from C"),
        (tmp_path / "none", "manifest.json: No such file or directory"),
        (tmp_path / "other", "manifest.json: model format 3, but this library reads format 1"),
    ]:
        with pytest.raises(ValueError, match=reason):
            Opened(library, path)


def test_a_damaged_model_is_refused_or_scores_but_never_crashes(library, small, tmp_path):
    rng = np.random.default_rng(0)
    path = shutil.copytree(small, tmp_path / "model")
    (shard,) = path.glob("shard-*")
    sound = {p: p.read_bytes() for p in (path / "manifest.json", *path.glob("labels*"), shard)}
    refused = 0
    for number in range(300):
        target = list(sound)[number % 3]
        content = bytearray(sound[target])
        first, second = rng.integers(0, min(600, len(content)) if number % 2 else len(content), 2)
        if number % 5 == 0:
            del content[first:]
        else:
            content[first] = rng.integers(0, 256)
            content[second] ^= 1 << int(rng.integers(0, 8))
        target.write_bytes(content)
        try:
            with Opened(library, path) as opened:
                opened.topk(np.arange(10), np.ones(10), 5)
        except ValueError:
            refused += 1
        target.write_bytes(sound[target])
    assert 100 < refused < 300


def test_names_are_returned_with_their_length(library, tmp_path):
    X, Y = random_problem(rows=60, features=20, labels=3, density=0.2)
    names = ["fruit", "été", "a b"]
    train(X, Y, tmp_path / "model", names=names)
    size = ctypes.c_size_t()
    with Opened(library, tmp_path / "model") as opened:
        found = []
        for label in range(3):
            at = library.dismec_label_name(opened.handle, label, ctypes.byref(size))
            found.append(ctypes.string_at(at, size.value).decode())
        assert found == names
        assert library.dismec_label_name(opened.handle, 3, ctypes.byref(size)) is None


def test_unnamed_labels_have_no_name(library, small):
    size = ctypes.c_size_t()
    with Opened(library, small) as opened:
        assert library.dismec_label_name(opened.handle, 0, ctypes.byref(size)) is None


def test_the_program_in_the_c_howto_runs(built, tmp_path):
    (program,) = re.findall(
        r"```c\n(.*?)```", (ROOT / "docs" / "howto" / "c.md").read_text(), re.DOTALL
    )
    X, Y = random_problem(rows=60, features=20, labels=6, density=0.2)
    model = train(X, Y, tmp_path / "model", names=list("abcdef"))
    (tmp_path / "program.c").write_text(program)
    (found,) = built.glob("CMakeFiles/*/CMakeCCompiler.cmake")  # a toolchain's is not in the cache
    (compiler,) = re.findall(r'^set\(CMAKE_C_COMPILER "(.+)"\)', found.read_text(), re.MULTILINE)
    include, here = ROOT / "native" / "c", tmp_path / "program"
    source = tmp_path / "program.c"
    run(compiler, "-Wall", "-Werror", "-I", include, source, "-o", here, "-L", built, "-ldismec")
    env = {**os.environ, "LD_LIBRARY_PATH": str(built)}
    out = run(*EMULATOR, here, cwd=tmp_path, env=env).stdout
    row = np.zeros((1, 20), np.float32)
    row[0, [3, 17]] = 1, 0.5
    (labels,), (scores,) = model.predict_topk(row, 5)
    best = zip(labels, scores, strict=True)
    assert out.splitlines() == [f"{'abcdef'[label]} {score:g}" for label, score in best]
