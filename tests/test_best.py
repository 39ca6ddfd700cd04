"""Training with everything that pays on held-out rows."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

from conftest import random_problem, weight_files
from dismec import (
    DiSMECClassifier,
    DiSMECTextClassifier,
    ModelError,
    TextParams,
    TrainingParams,
    open_model,
    save_data,
    train,
    train_text,
)
from dismec.cli import main
from dismec.data.dataset import Dataset
from dismec.training import choose_c, choose_terms
from dismec.training.train import fit

pytestmark = pytest.mark.native(needs="sklearn")

BEST = TrainingParams(best=True)
TEXT_BEST = TrainingParams(best=True, tfidf=True)
STEMS = ["bread", "kettle", "garden", "window", "pepper", "bottle", "carpet", "ladder"]


def pair_texts(rng, n=900):
    """Texts whose label is the order of two words."""
    for _ in range(n):
        first, second = rng.permutation(4)[:2]
        yield f"{STEMS[first]} {STEMS[second]} w{rng.integers(30)}", f"{first}-{second}"


def form_texts(rng, n=900):
    """Texts whose label is the stem of a word that nearly always has another ending."""
    for _ in range(n):
        stem = int(rng.integers(len(STEMS)))
        yield f"w{rng.integers(30)} {STEMS[stem][:5]}{rng.integers(10**6)}", STEMS[stem]


def plain_texts(rng, n=900):
    for _ in range(n):
        word = int(rng.integers(len(STEMS)))
        yield f"{STEMS[word]} w{rng.integers(30)}", STEMS[word]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for make in (pair_texts, form_texts, plain_texts):
        rows = make(np.random.default_rng(0))
        lines = [json.dumps({"text": text, "labels": [label]}) for text, label in rows]
        (folder / f"{make.__name__}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize(
    ("name", "used", "expected"),
    [
        ("pair_texts", {"words", "pairs of words"}, TextParams((1, 2), min_df=2)),
        ("form_texts", {"words", "prefixes"}, TextParams(prefix=5)),
        ("plain_texts", {"words"}, TextParams()),
    ],
)
def test_terms_that_help_are_used(files, tmp_path, name, used, expected):
    model = train_text(files / f"{name}.jsonl", tmp_path / "model", TEXT_BEST)
    table = model.params["terms_table"]
    assert {row["terms"] for row in table if row["used"]} == used
    assert model.vocabulary.params == expected
    assert model.calibration is not None
    assert not list((tmp_path / "model").glob(".stage-*"))
    text = {"pair_texts": "garden kettle", "form_texts": "garde777", "plain_texts": "garden"}[name]
    best, _ = model.predict_topk([text], 1)
    assert model.names[best[0, 0]] == {"pair_texts": "2-1"}.get(name, "garden")


def test_terms_that_are_given_are_not_chosen(files, tmp_path):
    text = TextParams(word_ngrams=(1, 1), min_df=1)
    model = train_text(files / "pair_texts.jsonl", tmp_path / "model", TEXT_BEST, text)
    assert "terms_table" not in model.params
    assert model.vocabulary.params == text


def test_too_many_terms_are_not_tried_and_then_refining_is_not(files, tmp_path):
    limits = {"_MANY": 10, "_MOST_TIMES": 2.0, "_MOST_TIMES_REFINED": 1.2}
    with mock.patch.multiple(choose_terms, **limits):
        model = train_text(files / "form_texts.jsonl", tmp_path / "model", TEXT_BEST)
    table = {row["terms"]: row for row in model.params["terms_table"]}
    assert "gain" not in table["character n-grams"]
    assert table["prefixes"]["used"]
    assert model.params["refine"] is False
    assert "refine_effect" not in model.params
    assert model.calibration is not None


def test_the_model_is_the_one_of_what_was_chosen(tmp_path):
    X, Y = random_problem(rows=900, labels=40, seed=2)
    chosen = train(X, Y, tmp_path / "best", BEST)
    assert not chosen.manifest.refined  # labels are drawn independently
    values = {"C": chosen.params["C"], "positive_weight": chosen.params["positive_weight"]}
    train(X, Y, tmp_path / "same", TrainingParams(**values, calibrate=True))
    assert weight_files(tmp_path / "best") == weight_files(tmp_path / "same")
    table = chosen.params["C_table"]
    assert {row["positive_weight"] for row in table} >= {1.0, 2.0}
    assert chosen.params["best"] is True


def count_rows(rows=1500, labels=12, seed=0):
    """Rows of word counts: one word of the label, once, among others that are repeated a lot."""
    rng = np.random.default_rng(seed)
    X = np.zeros((rows, 8 * labels), np.float32)
    own = rng.integers(labels, size=rows)
    X[np.arange(rows), 2 * own + rng.integers(2, size=rows)] = 1
    for row in X:
        row[2 * labels + rng.integers(6 * labels, size=6)] += rng.geometric(0.05, size=6)
    return sp.csr_array(X), sp.csr_array(np.eye(labels, dtype=np.uint8)[own])


def test_square_roots_are_used_where_they_help(tmp_path):
    X, Y = count_rows()
    model = train(X, Y, tmp_path / "model", BEST)
    effect = model.params["sqrt_effect"]
    assert effect["used"]
    assert effect["gain"] > effect["margin"]
    assert (model.params["sqrt"], model.transform.sqrt) == (True, True)
    values = {"C": model.params["C"], "positive_weight": model.params["positive_weight"]}
    same = TrainingParams(**values, sqrt=True, calibrate=True)
    if not model.manifest.refined:
        train(X, Y, tmp_path / "same", same)
        assert weight_files(tmp_path / "model") == weight_files(tmp_path / "same")
    plain, given = (fit(X, Y, TrainingParams(sqrt=sqrt)) for sqrt in (False, True))
    test = count_rows(seed=1)
    assert given.evaluate(*test)["P@1"] > plain.evaluate(*test)["P@1"] + 5
    clf = DiSMECClassifier(best=True).fit(X, Y)
    assert (clf.sqrt, clf.model_.params["sqrt"]) == (False, True)
    np.testing.assert_array_equal(clf.model_.predict_topk(X, 1)[0], model.predict_topk(X, 1)[0])


def test_square_roots_are_not_tried_where_all_values_are_equal_or_they_are_given(tmp_path):
    X, Y = count_rows()
    binary = sp.csr_array((X > 0).astype(np.float32))
    assert "sqrt_effect" not in train(binary, Y, tmp_path / "binary", BEST).params
    given = train(X, Y, tmp_path / "given", replace(BEST, sqrt=True)).params
    assert given["sqrt"] is True
    assert "sqrt_effect" not in given


def test_a_stopped_run_keeps_its_square_roots(tmp_path):
    X, Y = count_rows()
    path = tmp_path / "model"
    for place in ("dismec.training.choose_c.peak", "dismec.model.weight_files.finish"):
        with (
            mock.patch(place, side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            train(X, Y, path, BEST)
    with mock.patch.object(choose_c.Trials, "_try", side_effect=AssertionError):
        resumed = train(X, Y, path, BEST)
    whole = train(X, Y, tmp_path / "whole", BEST)
    assert resumed.params["sqrt_effect"] == whole.params["sqrt_effect"]
    assert resumed.transform == whole.transform
    assert weight_files(path) == weight_files(tmp_path / "whole")


@pytest.mark.parametrize("given", [True, False])
def test_a_run_with_given_square_roots_does_not_resume_one_that_chose(tmp_path, given):
    X, Y = count_rows()
    earlier, later = (replace(BEST, sqrt=sqrt) for sqrt in (not given, given))
    with (
        mock.patch("dismec.model.weight_files.finish", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        train(X, Y, tmp_path / "model", earlier)
    with pytest.raises(ModelError, match="sqrt"):
        train(X, Y, tmp_path / "model", later)


class Quality:
    """Trials whose results are known."""

    def __init__(self, best_weight):
        self.best_weight, self.tried = best_weight, []
        self.found = {(0.25, 1.0): {}, (0.5, 1.0): {}}

    def quality_at(self, C, weight):
        self.tried.append((C, weight))
        return -abs(np.log2(weight / self.best_weight))

    def margin(self, one, other):
        return 0.5


@pytest.mark.parametrize(("best", "expected"), [(0.5, 1.0), (1.0, 1.0), (4.0, 4.0), (99.0, 8.0)])
def test_positives_get_more_weight_as_long_as_that_is_better(best, expected):
    trials = Quality(best)
    C, weight = choose_c._weighed(trials, 0.3)
    assert weight == expected
    assert pytest.approx(0.3 / weight**0.7, rel=0.05) == C
    assert max(w for _, w in trials.tried) <= min(2 * expected, 8.0)


def test_a_stopped_run_keeps_its_terms(files, tmp_path):
    path, source = tmp_path / "model", files / "pair_texts.jsonl"
    with (
        mock.patch("dismec.training.choose_c.peak", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        train_text(source, path, TEXT_BEST)
    with mock.patch.object(choose_terms, "choose_terms", side_effect=AssertionError):
        resumed = train_text(source, path, TEXT_BEST)
    whole = train_text(source, tmp_path / "whole", TEXT_BEST)
    assert resumed.vocabulary.params == whole.vocabulary.params
    assert weight_files(path) == weight_files(tmp_path / "whole")


def test_a_run_that_is_stopped_while_choosing_terms_starts_again(files, tmp_path):
    path, source = tmp_path / "model", files / "plain_texts.jsonl"
    stop = mock.patch.object(choose_terms, "difference_margin", side_effect=KeyboardInterrupt)
    with stop, pytest.raises(KeyboardInterrupt):
        train_text(source, path, TEXT_BEST)
    assert train_text(source, path, TEXT_BEST).vocabulary.params == TextParams()


def test_estimators_choose_what_pays(files, tmp_path):
    rows = list(form_texts(np.random.default_rng(0)))
    texts, labels = zip(*rows, strict=True)
    clf = DiSMECTextClassifier(best=True).fit(texts, labels)
    assert clf.model_.vocabulary.params == TextParams(prefix=5)
    same = train_text(files / "form_texts.jsonl", tmp_path / "same", TEXT_BEST)
    assert clf.model_.params["C"] == same.params["C"]
    assert (clf.coef_ != same.weights[:, :-1]).nnz == 0
    used = [[r["terms"] for r in m.params["terms_table"] if r["used"]] for m in (clf.model_, same)]
    assert used == [["words", "prefixes"]] * 2
    assert clf.predict(["garde777"]) == ["garden"]
    assert clf.predict_proba(["garde777"]).shape == (1, 8)
    clf.save(tmp_path / "model")
    again = DiSMECTextClassifier.load(tmp_path / "model")
    assert (again.best, again.prefix, again.C) == (True, 0, "auto")
    given = DiSMECTextClassifier(best=True, min_df=2).fit(texts, labels)
    assert given.model_.vocabulary.params == TextParams(min_df=2)
    X, Y = random_problem(rows=300, labels=8)
    assert DiSMECClassifier(best=True).fit(X, Y).model_.calibration is not None


def test_the_command_line_says_what_square_roots_gain(tmp_path):
    save_data(Dataset(*count_rows()), tmp_path / "data.xmc")
    result = run("train", tmp_path / "data.xmc", "-o", tmp_path / "model", "--best")
    assert result.exit_code == 0, result.output
    assert "square roots of values: +" in result.stderr
    shown = run("inspect", tmp_path / "model")
    assert "sqrt_effect" in shown.stdout


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments], prog_name="dismec")


def test_the_command_line_says_what_each_step_gained(files, tmp_path):
    path = tmp_path / "model"
    result = run("train", files / "pair_texts.jsonl", "-o", path, "--best")
    assert result.exit_code == 0, result.output
    said = result.stderr
    for line in ("words: used", "pairs of words: +", "refined: P@1/P@3/P@5"):
        assert line in said, said
    assert "positives ×" in result.stdout
    assert open_model(path).params["best"] is True
    assert run("inspect", path).exit_code == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--best --C 2", "--best chooses C"),
        ("--best --penalty l1", "best is not supported with penalty='l1'"),
    ],
)
def test_what_is_chosen_cannot_be_given(files, tmp_path, options, reason):
    data = files / "plain_texts.jsonl"
    result = run("train", data, "-o", tmp_path / "model", *options.split())
    assert result.exit_code == 2
    assert reason in result.stderr.splitlines()[-1]
    assert not (tmp_path / "model").exists()


def test_refining_is_tried_unless_the_terms_make_it_slow():
    def used(*entries):
        return [{"entries": n, "used": True} for n in entries]

    assert choose_terms.refines(())
    assert choose_terms.refines(used(10**9))
    assert choose_terms.refines(used(10**6, 9 * 10**6))
    assert not choose_terms.refines(used(10**8, 2 * 10**8))
    assert choose_terms.refines([*used(10**8), {"entries": 2 * 10**8, "used": False}])
