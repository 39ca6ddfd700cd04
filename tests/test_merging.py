"""Models of some labels of a model, and models of different labels merged."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

from conftest import LABELS, random_problem, related, weight_files, with_calibration, write_texts
from dismec import (
    DataError,
    DiSMECClassifier,
    ModelError,
    TrainingParams,
    add_labels,
    merge_models,
    open_model,
    remove_labels,
    train,
    train_text,
)
from dismec.cli import main
from dismec.cpu import kernels
from dismec.data.dataset import Dataset, save_data
from dismec.data.targets import columns_by_name
from dismec.model.manifest import PRECISIONS
from dismec.model.select_labels import selected
from dismec.model.shards import gather, pack
from dismec.serve.answers import Service
from dismec.serve.contract import Limits
from dismec.training.train import fit

NAMES = [f"label {i}" for i in range(40)]
PARAMS = TrainingParams(tfidf=True)
SOME = [3, 4, 5, 11, 17, 30, 39]


def trained(labels=slice(None), params=PARAMS, path=None, seed=0):
    X, Y = random_problem(seed=seed)
    names = list(NAMES[labels])
    if path is None:
        return fit(X, Y[:, labels], params, names=names)
    return train(X, Y[:, labels], path, params, names=names)


@pytest.fixture(scope="module")
def whole():
    """A model of all labels, in small shards."""
    with mock.patch("dismec.model.shards.MOST_WEIGHTS", 500):
        return trained(params=replace(PARAMS, calibrate=True))


@pytest.fixture(scope="module")
def rows():
    return random_problem(seed=1)[0]


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr.strip().splitlines()[-1]


def same_weights(one, labels, other, others):
    return (one.weights[labels] != other.weights[others]).nnz == 0


def ranked_among(model, rows, labels, rank):
    """Rank all labels by the whole model, keep the wanted ones, and renumber them."""
    top, values = model.predict_topk(rows, model.n_labels, rank=rank)
    number = np.full(model.n_labels, -1)
    number[labels] = np.arange(len(labels))
    keep = number[top] >= 0
    shape = len(top), len(labels)
    return number[top][keep].reshape(shape), values[keep].reshape(shape)


@pytest.mark.parametrize("rank", ["score", "probability"])
def test_a_subset_ranks_its_labels_with_the_same_bits(whole, rows, rank):
    assert len(whole.shards) > 2
    found = whole.subset([NAMES[i] for i in SOME])
    assert list(found.names) == [NAMES[i] for i in SOME]
    assert same_weights(found, slice(None), whole, SOME)
    np.testing.assert_array_equal(found.label_counts, whole.label_counts[SOME])
    top, values = found.predict_topk(rows, len(SOME), rank=rank)
    its_top, its_values = ranked_among(whole, rows, SOME, rank)
    np.testing.assert_array_equal(top, its_top)
    np.testing.assert_array_equal(values.view(np.uint32), its_values.view(np.uint32))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("seed", range(3))
def test_selected_shards_hold_the_weights_bit_for_bit(precision, seed):
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((60, 31)) * np.exp2(-rng.integers(0, 24, (60, 31)))
    W[:, 0] = 1 - 2.0**-13  # rounds up to its scale in float16
    W[7] = W[9] = W[30]
    W = sp.csr_array((W * (rng.random(W.shape) < 0.7)).astype(np.float32))
    halves = [(np.arange(30), W[:30]), (np.arange(30, 60), W[30:])]
    shards = [shard for half in halves for shard in pack([half], 30, precision)]
    wanted = rng.random(60) < 0.5
    wanted[30:] |= seed == 0  # one of the shards is wanted entirely
    labels = np.flatnonzero(wanted)
    with mock.patch.object(kernels, "shard_rows", 20):
        found = selected(shards, wanted)
    assert sorted(np.concatenate([s.labels for s in found])) == labels.tolist()
    before, after = (gather(s, 60, 30)[labels].toarray() for s in (shards, found))
    np.testing.assert_array_equal(after.view(np.uint32), before.view(np.uint32))
    for shard in found:
        first = shard.labels[shard.label_starts[:-1]]
        assert (np.diff(first) > 0).all()
        assert len(first) <= 30


def test_labels_that_share_weights_keep_their_curve_without_the_first_of_them(rows):
    X, Y = random_problem()
    Y = Y.toarray()
    Y[:, 20] = Y[:, 30]
    model = fit(X, sp.csr_array(Y), TrainingParams(calibrate=True))
    odd = model.calibration
    slopes = odd.slopes.copy()
    slopes[20] = 2 * slopes[20]
    model = with_calibration(model, replace(odd, slopes=slopes))
    assert model.first_labels[30] == 20
    mine = model.subset([30]).predict_proba(rows)[:, 0]
    np.testing.assert_array_equal(mine, model.predict_proba(rows)[:, 30])


def test_a_subset_is_written_and_opened_and_records_its_origin(whole, tmp_path):
    whole.subset([3, "label 4", "label 5", 11, 3]).save(tmp_path / "model")
    found = open_model(tmp_path / "model", check=True)
    (entry,) = found.manifest.history
    assert (entry["action"], entry["labels"], entry["of"]) == ("kept", 4, 40)
    assert entry["numbers"] == "3-5,11"
    assert found.manifest.stats is None
    assert found.evaluate(*random_problem()).keys() >= {"P@1", "PSP@1", "micro-F1"}


def test_a_subset_of_all_labels_has_the_same_files(whole, tmp_path):
    whole.save(tmp_path / "whole")
    whole.subset(range(40)).save(tmp_path / "subset")
    assert weight_files(tmp_path / "subset") == weight_files(tmp_path / "whole")


def test_impossible_subsets_are_refused_in_one_line(whole):
    with pytest.raises(DataError, match="no labels given"):
        whole.subset([])
    with pytest.raises(DataError, match="no label 'nothing'"):
        whole.subset(["label 3", "nothing"])
    refined = fit(*related(), TrainingParams(refine=True))
    assert refined.manifest.refined
    with pytest.raises(ModelError, match="the model is refined"):
        refined.subset([1])
    with pytest.raises(ModelError, match="model 2 is refined"):
        merge_models([whole, refined])


def test_mutually_exclusive_classes_are_not_split(tmp_path):
    X, _ = random_problem()
    DiSMECClassifier().fit(X, np.arange(300) % 3).save(tmp_path / "model")
    with pytest.raises(ModelError, match="exclude each other"):
        open_model(tmp_path / "model").subset([1])


@pytest.mark.parametrize("rank", ["score", "probability"])
def test_models_of_disjoint_labels_merge_into_the_model_of_all(whole, rows, rank):
    parts = [whole.subset(range(15)), whole.subset(range(15, 40))]
    merged = merge_models(parts)
    assert list(merged.names) == NAMES
    for mine, its in zip(
        merged.predict_topk(rows, 40, rank=rank),
        whole.predict_topk(rows, 40, rank=rank),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, its)
    np.testing.assert_array_equal(merged.propensities(), whole.propensities())
    assert same_weights(merged, slice(None), whole, slice(None))


def test_models_trained_apart_have_the_weights_of_one_training(tmp_path):
    trained(slice(0, 15), path=tmp_path / "a")
    trained(slice(15, 40), path=tmp_path / "b")
    merged = merge_models([tmp_path / "b", tmp_path / "a"])
    assert list(merged.names) == NAMES[15:] + NAMES[:15]
    order = [*range(15, 40), *range(15)]
    assert same_weights(merged, slice(None), trained(), order)
    assert merged.manifest.n_rows == 300
    (entry,) = merged.manifest.history
    assert (entry["action"], entry["labels"]) == ("merged", 40)
    assert [part["numbers"] for part in entry["models"]] == ["0-24", "25-39"]
    assert merged.manifest.stats.solved == 40


def test_a_label_without_rows_in_one_model_is_taken_from_the_other():
    X, Y = random_problem()
    left, right = Y.tolil(), Y.tolil()
    left[:, 20:] = 0
    right[:, :19] = 0
    right[:, 19] = 0
    one, other = (fit(X, y.tocsr(), PARAMS, names=NAMES) for y in (left, right))
    merged = merge_models([one, other])
    assert list(merged.names) == NAMES
    assert same_weights(merged, slice(None), trained(), slice(None))


def test_without_names_labels_of_the_second_come_after_those_of_the_first():
    X, Y = random_problem()
    one, other = (fit(X, Y[:, part], PARAMS) for part in (slice(7), slice(7, 40)))
    assert same_weights(merge_models([one, other]), slice(None), trained(), slice(None))


def test_parameters_come_from_the_first_model_and_the_history_records_the_others(tmp_path):
    one, other = trained(slice(15)), trained(slice(15, 40), replace(PARAMS, C=2.0))
    merged = merge_models([one, other])
    assert merged.params["C"] == 1
    assert [part["params"]["C"] for part in merged.manifest.history[0]["models"]] == [1.0, 2.0]


def test_models_that_do_not_match_are_refused_with_the_difference(tmp_path):
    one = trained(slice(15))
    X, Y = random_problem()

    def fails(other, reason):
        with pytest.raises(ModelError, match=reason) as caught:
            merge_models([one, other])
        assert "\n" not in str(caught.value)

    rest = slice(15, 40)
    fails(trained(slice(14, 40)), "label 'label 14' is in model 1 and model 2")
    fails(
        trained(rest, replace(PARAMS, normalize=False)), "normalize is True in the first and False"
    )
    fails(trained(rest, replace(PARAMS, bias=2.0)), "bias is 1.0 in the first and 2.0")
    fails(trained(rest, replace(PARAMS, tfidf=False)), "tfidf is True in the first and False")
    fails(
        trained(rest, replace(PARAMS, precision="float8")),
        "precision is float16 in the first and float8",
    )
    fails(trained(rest, replace(PARAMS, penalty="l1")), "penalty is l2 in the first and l1")
    fails(trained(rest, seed=3), "their idf differs")
    fails(fit(X, Y[:, rest], PARAMS), "labels have names is True in the first and False")
    fails(
        fit(X[:, :70], Y[:, rest], PARAMS, names=NAMES[rest]),
        "n_features is 80 in the first and 70",
    )
    with pytest.raises(DataError, match="merging needs at least 2 models, got 1"):
        merge_models([one])


def test_models_of_texts_merge_if_their_vocabularies_are_the_same(tmp_path):
    write_texts(tmp_path / "all.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    names = sorted(LABELS)

    def part(name, labels, texts=rows):
        frame = pd.DataFrame(texts)
        frame["labels"] = [[label for label in row if label in labels] for row in frame["labels"]]
        return train_text(frame, tmp_path / name)

    whole = part("whole", names)
    merged = merge_models([part("a", names[:2]), part("b", names[2:])])
    texts = [row["text"] for row in rows[:20]]
    assert {*map(frozenset, merged.predict(texts))} == {*map(frozenset, whole.predict(texts))}
    with pytest.raises(ModelError, match=r"features|vocabularies differ"):
        merge_models([part("c", names[:2]), part("d", names[2:], rows[:200])])
    with pytest.raises(ModelError, match="input is texts in the first and rows"):
        merge_models([merged, trained()])
    with pytest.raises(ModelError, match="input is rows in the first and texts"):
        merge_models([trained(), merged])


def test_differing_calibrations_are_left_out_or_learned_together(rows):
    calibrated = replace(PARAMS, calibrate=True)
    parts = [trained(part, calibrated) for part in (slice(15), slice(15, 40))]
    merged = merge_models(parts)
    assert merged.calibration is None
    assert "calibrated" not in merged.params
    X, Y = random_problem(seed=2)
    again = merge_models(parts, validation=(X, Y))
    assert again.params["calibrated"]["rows"] == 300
    assert again.params["calibrate"] is True
    assert again.predict_proba(rows).shape == (300, 40)
    half = merge_models([parts[0], trained(slice(15, 40))])
    assert half.calibration is None


def test_a_merged_model_is_a_model_like_any_other(tmp_path):
    X, Y = random_problem()
    parts = [trained(part) for part in (slice(10), slice(10, 30))]
    merge_models(parts).save(tmp_path / "model")
    grown = add_labels(tmp_path / "model", X, Y, NAMES)
    assert same_weights(grown, slice(None), trained(), slice(None))
    remove_labels(tmp_path / "model", ["label 3"])
    assert open_model(tmp_path / "model").label_counts[3] == 0
    smaller = open_model(tmp_path / "model").pruned(0.1, precision="float8")
    assert smaller.nnz < grown.nnz
    assert DiSMECClassifier.load(tmp_path / "model").model_.n_labels == 40
    service = Service(tmp_path / "model", Limits())
    answer, n_rows = service.predict(json.dumps({"features": [[3, 1.5]], "k": 2}).encode())
    assert (len(json.loads(answer)["labels"]), n_rows) == (2, 1)
    found = run("inspect", tmp_path / "model")
    assert "30 labels merged from 2 models" in found.output


def test_commands_write_models_and_evaluate_them_by_name(whole, tmp_path):
    whole.save(tmp_path / "model")
    X, Y = random_problem(seed=2)
    save_data(Dataset(X, Y, NAMES), tmp_path / "test.xmc")
    (tmp_path / "odd.txt").write_text("\n".join(NAMES[1::2]))
    a, b, c = (tmp_path / name for name in "abc")
    result = run("subset", tmp_path / "model", "-o", a, "--labels", tmp_path / "odd.txt")
    assert result.exit_code == 0, result.output
    assert "20 labels" in result.stderr
    found = json.loads(run("subset", tmp_path / "model", *NAMES[::2], "-o", b, "--json").stdout)
    assert found["labels"] == 20
    result = run("merge", a, b, "-o", c, "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    mine, its = (
        run("evaluate", path, tmp_path / "test.xmc", "--json") for path in (c, tmp_path / "model")
    )
    assert json.loads(mine.stdout) == json.loads(its.stdout)
    odd = run("evaluate", a, tmp_path / "test.xmc", "--json", "--rank", "score")
    assert odd.exit_code == 0, odd.output
    Y_odd = sp.hstack([Y[:, 1::2], Y[:, ::2]], format="csr")
    expected = open_model(a).evaluate(X, Y_odd, rank="score")
    assert json.loads(odd.stdout)["P@1"] == round(expected["P@1"], 2)


def test_columns_are_found_by_name_and_unknown_ones_come_last():
    Y = sp.csr_array(np.array([[1, 0, 1, 0], [0, 1, 0, 1]], np.uint8))
    found, names = columns_by_name(Y, ["new", "b", "a", "b"], ["a", "b", "c"])
    assert names == ["a", "b", "c", "new"]
    assert found.toarray().tolist() == [[1, 0, 0, 1], [0, 1, 0, 0]]


def test_commands_refuse_in_one_line_and_write_nothing(whole, tmp_path):
    whole.save(tmp_path / "model")
    model, new = tmp_path / "model", tmp_path / "new"
    assert "no label 'nothing'" in refused("subset", model, "nothing", "-o", new)
    assert "no labels given" in refused("subset", model, "-o", new)
    assert "is in" in refused("merge", model, model, "-o", new)
    assert refused("merge", model, model, "-o", new).endswith("(subset)")
    assert "merging needs at least 2 models, got 1" in refused("merge", model, "-o", new)
    assert "is the model itself" in refused("subset", model, "label 3", "-o", model)
    assert "is one of the models" in refused("merge", model, model, "-o", model)
    assert "--validation" in refused("merge", model, "--label-names", model, "-o", new)
    assert not new.exists()
    run("subset", model, "label 3", "-o", new)
    assert refused("subset", model, "label 4", "-o", new).endswith("(--overwrite)")
    assert run("subset", model, "label 4", "-o", new, "--overwrite").exit_code == 0


def test_merging_reports_dropped_probabilities_and_learns_them_on_request(tmp_path):
    calibrated = replace(PARAMS, calibrate=True)
    trained(slice(15), calibrated, tmp_path / "a")
    trained(slice(15, 40), calibrated, tmp_path / "b")
    save_data(Dataset(*random_problem(seed=2), NAMES), tmp_path / "test.xmc")
    sources = tmp_path / "a", tmp_path / "b"
    result = run("merge", *sources, "-o", tmp_path / "c")
    assert "probabilities left out" in result.stderr
    result = run("merge", *sources, "-o", tmp_path / "d", "--validation", tmp_path / "test.xmc")
    assert result.exit_code == 0, result.output
    assert "left out" not in result.stderr
    assert open_model(tmp_path / "d").calibration is not None


def test_names_of_features_must_be_the_same_if_both_are_known(tmp_path):
    X, Y = random_problem()
    frame = pd.DataFrame(X.toarray(), columns=[f"feature {i}" for i in range(X.shape[1])])
    labels = pd.DataFrame(Y[:, :15].toarray(), columns=NAMES[:15])
    DiSMECClassifier().fit(frame, labels).save(tmp_path / "one")
    one = open_model(tmp_path / "one")
    other = fit(X, Y[:, 15:], TrainingParams(), names=NAMES[15:])
    assert list(merge_models([one, other]).names) == NAMES
    frame.columns = reversed(frame.columns)
    labels.columns = NAMES[15:30]
    DiSMECClassifier().fit(frame, labels).save(tmp_path / "third")
    with pytest.raises(ModelError, match="the names of their features differ"):
        merge_models([tmp_path / "one", tmp_path / "third"])
