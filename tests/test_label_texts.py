"""Texts that describe labels: what they add to weights, and labels that have nothing else."""

from __future__ import annotations

import gzip
import json
from unittest import mock

import numpy as np
import pytest

from conftest import stopped_after, weight_files
from dismec import (
    DataError,
    DiSMECTextClassifier,
    ModelError,
    TrainingParams,
    add_labels,
    describe_labels,
    merge_models,
    open_model,
    train_text,
    update_labels,
)
from dismec.features import label_texts as module
from dismec.features.label_texts import ALONE, label_texts, matches, own_text
from dismec.features.vocabulary import TextParams, VocabularyBuilder
from test_cli import ok, run

STARTS = ("apple", "bridge", "candle", "dragon", "engine", "forest", "glacier", "harbour")
ENDS = ("mill", "yard", "song", "stone", "light", "house", "field", "wood")
TOPICS = [f"{start}{end}s" for end in ENDS for start in STARTS]
COMMON = ["the", "and", "was", "with", "some", "lay", "seen", "full", "day", "crate"]
NEW = {"volcanoes": "a volcano and its lava", "notes": "music"}


def write_texts(path, rows=1500, n_words=4, seed=0, named=True):
    """Write texts that often contain the name of their label; some labels have few rows."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, len(TOPICS) + 1)
    with path.open("w") as file:
        for _ in range(rows):
            label = rng.choice(TOPICS, p=share / share.sum())
            words = list(rng.choice(COMMON, n_words))
            for topic, chance in ((label, 0.8), (rng.choice(TOPICS), 0.5)):
                if rng.random() < chance:
                    words.append(topic.removesuffix("s") + rng.choice(["", "s", "ed", "er"]))
            if rng.random() < 0.1:
                words.append(rng.choice(["volcano", "lava", "music"]))
            name = label if named else f"class {TOPICS.index(label)}"
            text = " ".join(rng.permutation(words))
            file.write(json.dumps({"text": text, "labels": [name]}) + "\n")
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("data") / "train.jsonl")


PARAMS = TrainingParams(tfidf=True, calibrate=True, block_size=3, precision="float32")


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "model"
    train_text(data, path, PARAMS, label_texts=NEW)
    return path


@pytest.fixture
def model(trained, tmp_path):
    from shutil import copytree

    return copytree(trained, tmp_path / "model")


def numbers(model, *names):
    return [model.label_numbers[name] for name in names]


# Reading


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"label": "cast-iron", "synonyms": ["pan", "pot"]}\n{"label": "b"}\n'),
        ("a.json", '[{"label": "cast-iron", "synonyms": ["pan", "pot"]}, {"label": "b"}]'),
        ("a.csv", "label,synonyms\ncast-iron,pan pot\nb,\n"),
        ("a.tsv", "label\tsynonyms\ncast-iron\tpan pot\nb\t\n"),
    ],
)
def test_texts_are_read_from_json_and_tables(tmp_path, name, content):
    file = tmp_path / name
    file.write_text(content)
    found = label_texts(file)
    assert list(found) == ["cast-iron", "b"]
    assert found["cast-iron"].split() == ["cast", "iron", "pan", "pot"]
    assert found["b"] == "b"


def test_a_name_replaces_the_label_and_lines_are_labels(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"label": "Q42", "name": "pans", "description": "made of iron"}')
    assert label_texts(file) == {"Q42": "pans\nmade of iron"}
    lines = tmp_path / "a.txt"
    lines.write_text("cast_iron\nsoups and stews\n")
    assert label_texts(lines) == {"cast_iron": "cast iron", "soups and stews": "soups and stews"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"name": "a"}', "1: no key 'label'"),
        ('{"label": ["a"]}', "1: a label must be text"),
        ('{"label": "a", "synonyms": {}, "name": [1, {}]}', "1: 'name' is a list, which is not"),
        ('{"label": "a"}\n{"label": "a"}', "label 'a' is described twice"),
        ('{"label": "a"', "1: not a JSON object"),
    ],
)
def test_invalid_files_are_refused_in_one_line(tmp_path, content, reason):
    file = tmp_path / "a.jsonl"
    file.write_text(content)
    with pytest.raises(DataError, match=reason) as error:
        label_texts(file)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({" ": "a"}, "label_texts: a label has an empty name"),
        ({"a\ud800": "a"}, "half of a surrogate pair"),
        ({"a": "b", " a": "c"}, "label_texts: expected one text for label 'a'"),
        ({1: "b", "1": "c"}, "expected one text for label '1'"),
        ({"a": None}, "expected one text for label 'a'"),
        ({"a": ["b", "c"]}, "expected one text for label 'a'"),
    ],
)
def test_invalid_texts_are_refused_in_one_line(texts, reason):
    with pytest.raises(DataError, match=reason) as error:
        label_texts(texts)
    assert "\n" not in str(error.value)


def test_white_space_around_the_name_of_a_label_does_not_count(data, tmp_path):
    given = {f" {TOPICS[0]} ": "an apple"}
    model = train_text(data, tmp_path / "model", PARAMS, label_texts=given)
    assert sorted(model.names) == sorted(TOPICS)
    with pytest.raises(DataError, match="no label is new"):
        describe_labels(tmp_path / "model", given)


def test_lines_of_labels_are_in_a_text_file(tmp_path):
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(b"cast_iron\nsoups\n"))
    assert label_texts(packed) == {"cast_iron": "cast iron", "soups": "soups"}
    other = tmp_path / "labels"
    other.write_text("soups\nstews\n")
    with pytest.raises(DataError, match=r"labels: expected JSON lines .* need \.txt$"):
        label_texts(other)


# Matches


def vocabulary_of(*texts):
    builder = VocabularyBuilder(TextParams())
    builder.add(texts)
    return builder.finish()


def test_forms_of_a_word_match_and_other_words_do_not():
    words = "glacier glaciers glaciated glass bridge bridges bridal car cars cart"
    vocabulary = vocabulary_of(words)
    found = matches(vocabulary, None, ["glaciers", "bridge", "car"]).toarray()
    terms = list(vocabulary.terms)
    matched = [{terms[i] for i in np.flatnonzero(row)} for row in found]
    assert matched[0] == {"glacier", "glaciers"}
    assert matched[1] == {"bridge", "bridges"}
    assert matched[2] == {"car"}  # too short to tell forms from other words


def test_matches_are_the_same_for_some_features():
    vocabulary = vocabulary_of("boil boiled boils eggs egg bread breads bake baked")
    idf = np.linspace(1, 2, len(vocabulary.terms)).astype(np.float32)
    texts = ["boiling eggs", "bread", "egg bread bakes", ""]
    whole = matches(vocabulary, idf, texts).toarray()
    some = np.array([0, 2, 3, 7])
    part = matches(vocabulary, idf, texts, some).toarray()
    np.testing.assert_array_equal(whole[:, some], part[:, some])
    assert whole.shape == (4, len(vocabulary.terms))


def test_names_become_words():
    assert own_text("cast-iron_pans/pots") == "cast iron pans pots"


# Training


def test_texts_help_labels_with_few_rows(data, tmp_path):
    plain = train_text(data, tmp_path / "plain", PARAMS)
    model = train_text(data, tmp_path / "described", PARAMS, label_texts=True)
    effect = model.params["label_texts_effect"]
    assert effect["weight"] > 0
    assert effect["gain"] > 0
    test = write_texts(tmp_path / "test.jsonl", seed=1)
    rows = read(test)

    def psp(one):
        X = one.vocabulary.rows([row["text"] for row in rows])
        return one.evaluate(X, [row["labels"] for row in rows])["PSP@1"]

    assert psp(model) > psp(plain)


def test_names_that_say_nothing_leave_the_weights_as_they_are(tmp_path):
    file = write_texts(tmp_path / "train.jsonl", named=False)
    plain = train_text(file, tmp_path / "plain", PARAMS)
    model = train_text(file, tmp_path / "described", PARAMS, label_texts={"class 0": "the crate"})
    assert model.params["label_texts_effect"]["weight"] is None
    assert (model.weights != plain.weights).nnz == 0
    np.testing.assert_array_equal(model.label_counts, plain.label_counts)


def test_labels_without_rows_are_scored_by_their_matches(trained):
    model = open_model(trained)
    for name, text in NEW.items():
        (label,) = numbers(model, name)
        assert model.without_rows[label]
        idf = model.transform.idf
        m = matches(model.vocabulary, idf, [text]).toarray()[0]
        expected = np.append(ALONE * m, -1)
        np.testing.assert_allclose(model.weights[[label]].toarray()[0], expected, rtol=1e-6)
    assert np.count_nonzero(model.without_rows) == len(NEW)
    best = model.predict_topk(["lava of a volcano"], 3)[0][0]
    assert "volcanoes" in [model.names[label] for label in best]


@pytest.mark.parametrize("how", [{"threads": 1}, {"threads": 3}, {"block_size": 50}])
def test_bytes_do_not_depend_on_threads_and_blocks(data, trained, tmp_path, how):
    from dataclasses import replace

    params = replace(PARAMS, **({"block_size": how["block_size"]} if "block_size" in how else {}))
    train_text(data, tmp_path / "model", params, label_texts=NEW, threads=how.get("threads"))
    assert weight_files(tmp_path / "model") == weight_files(trained)


@pytest.mark.cluster
def test_a_cluster_gives_the_same_bytes(data, trained, tmp_path, dask_cluster):
    train_text(data, tmp_path / "model", PARAMS, label_texts=NEW, cluster=str(dask_cluster))
    assert weight_files(tmp_path / "model") == weight_files(trained)


def test_a_stopped_training_resumes(data, trained, tmp_path):
    with stopped_after(50), pytest.raises(KeyboardInterrupt):
        train_text(data, tmp_path / "model", PARAMS, label_texts=NEW)
    with mock.patch("dismec.training.held_out.choose_text_weight", side_effect=AssertionError):
        train_text(data, tmp_path / "model", PARAMS, label_texts=NEW)
    assert weight_files(tmp_path / "model") == weight_files(trained)


def test_other_texts_are_another_training(data, tmp_path):
    with stopped_after(2), pytest.raises(KeyboardInterrupt):
        train_text(data, tmp_path / "model", PARAMS, label_texts=NEW)
    with pytest.raises(ModelError, match="different model"):
        train_text(data, tmp_path / "model", PARAMS, label_texts={"volcanoes": "lava"})
    with pytest.raises(ModelError, match=r"different model \(other label_texts\)"):
        train_text(data, tmp_path / "model", PARAMS, label_texts=NEW | {"notes": "lava"})


@pytest.mark.parametrize("more", [{"C": "auto"}, {"refine": True}, {"calibrate": False}])
def test_texts_work_with_other_choices(data, tmp_path, more):
    from dataclasses import replace

    params = replace(PARAMS, **more)
    model = train_text(data, tmp_path / "model", params, label_texts=NEW)
    best = model.predict_topk(["lava of a volcano"], 3)[0][0]
    assert numbers(model, "volcanoes")[0] in best


def test_weights_of_rows_and_pairs_work_with_texts(data, trained, tmp_path):
    import scipy.sparse as sp

    n_rows = len(read(data))
    n_labels = len(open_model(trained).names)
    pairs = sp.csr_array(([0.0], ([0], [1])), shape=(n_rows, n_labels))
    weights = np.linspace(0, 2, n_rows)
    model = train_text(
        data, tmp_path / "model", PARAMS, label_texts=NEW, weights=weights, pair_weights=pairs
    )
    assert model.without_rows.any()


def test_dense_features_are_refused(data, tmp_path):
    dense = np.ones((len(read(data)), 2))
    with pytest.raises(DataError, match="label_texts is not supported with dense features"):
        train_text(data, tmp_path / "model", PARAMS, label_texts=True, dense=dense)


# Explaining


def test_explanations_say_what_the_text_adds(trained):
    model = open_model(trained)
    row = ["lava near some applemills"]
    for name in ("volcanoes", TOPICS[0]):
        (label,) = numbers(model, name)
        explanation = model.explain(row, label)
        weight = model.params["label_texts_effect"]["weight"] or 0.0
        text = NEW.get(name, name)
        x = model.transform.apply(model.vocabulary.rows(row)).toarray()[0]
        m = matches(model.vocabulary, model.transform.idf, [text]).toarray()[0]
        factor = ALONE if name in NEW else weight * model.label_counts[label] ** -0.3
        assert explanation.own_text == pytest.approx(factor * (x[:-1] @ m), rel=1e-5)
    alone = model.explain(row, numbers(model, "volcanoes")[0])
    assert alone.own_text == pytest.approx(sum(term.contribution for term in alone.terms), 1e-5)


def test_explanations_leave_out_what_pruning_dropped(trained):
    whole = open_model(trained)
    (label,) = numbers(whole, "volcanoes")
    for delta in (0.1, 0.3, 0.5, 10):
        found = whole.pruned(delta).explain(["lava of a volcano"], label)
        assert found.own_text == pytest.approx(sum(t.contribution for t in found.terms), 1e-5)


# Labels that are described later


def test_labels_described_later_are_those_described_at_once(data, trained, tmp_path):
    train_text(data, tmp_path / "model", PARAMS, label_texts=True)
    later = describe_labels(tmp_path / "model", NEW)
    once = open_model(trained)
    for name in NEW:
        one, other = numbers(later, name)[0], numbers(once, name)[0]
        assert (later.weights[[one]] != once.weights[[other]]).nnz == 0
        assert later.without_rows[one]
        assert later.calibration.slopes[one] == once.calibration.slopes[other]
    assert later.manifest.history[-1]["action"] == "described"


def test_rows_replace_the_text_of_a_label(model):
    rows = ["lava and ash", "ash of the volcano", "an applemill", "the applemills"] * 3
    before = open_model(model)
    names = list(before.names)
    Y = np.zeros((len(rows), len(names)), int)
    for i, row in enumerate(rows):
        Y[i, names.index("volcanoes" if "a" in row and "applemill" not in row else TOPICS[0])] = 1
    after = add_labels(model, before.vocabulary.rows(rows), Y, names)
    (label,) = numbers(after, "volcanoes")
    assert not after.without_rows[label]
    assert after.label_counts[label] == 6
    assert after.without_rows[numbers(after, "notes")[0]]
    assert after.explain(["lava"], label).own_text is None
    (trained,) = numbers(after, TOPICS[0])
    assert after.explain(["an applemill"], trained).own_text > 0
    updated = update_labels(model, before.vocabulary.rows(rows), Y, [TOPICS[0]], names)
    assert updated.explain(["an applemill"], trained).own_text is None


def test_described_labels_survive_subsets_and_merging(model, tmp_path):
    opened = open_model(model)
    kept = opened.subset(["volcanoes", TOPICS[0]])
    assert kept.without_rows.tolist() == [False, True]
    others = opened.subset([TOPICS[1]])
    for name, part in (("a", kept), ("b", others)):
        part.save(tmp_path / name)
    merged = merge_models([tmp_path / "a", tmp_path / "b"])
    assert merged.without_rows.tolist() == [False, True, False]
    (label,) = numbers(merged, "volcanoes")
    assert (merged.weights[[label]] != opened.weights[numbers(opened, "volcanoes")]).nnz == 0
    assert merged.explain(["lava"], label).own_text > 0


def test_texts_that_a_merged_model_has_no_weight_for_are_not_explained(data, tmp_path):
    rows = read(data)
    parts = []
    for part, texts in enumerate((None, NEW)):
        file = tmp_path / f"{part}.jsonl"
        some = [
            row | {"labels": [name for name in row["labels"] if name in TOPICS[part::2]]}
            for row in rows
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in some))
        parts.append(train_text(file, tmp_path / f"m{part}", PARAMS, label_texts=texts))
    assert parts[1].params["label_texts_effect"]["weight"]
    for models, known in ((parts, False), (parts[::-1], True)):
        merged = merge_models(models)
        label, alone = numbers(merged, TOPICS[1], "volcanoes")
        assert bool(merged.explain([f"a {TOPICS[1]}"], label).own_text) == known
        assert merged.explain(["lava"], alone).own_text > 0


@pytest.mark.parametrize("texts", [{TOPICS[0]: "an applemill"}, {"strange": "unheard words only"}])
def test_nothing_to_describe_is_an_error(model, texts):
    before = weight_files(model)
    with pytest.raises(DataError, match="no label is new and has a text with words"):
        describe_labels(model, texts)
    assert weight_files(model) == before


# Command line, estimator


def test_commands_describe_predict_and_explain(data, tmp_path):
    texts = tmp_path / "labels.jsonl"
    texts.write_text("".join(json.dumps({"label": k, "name": v}) + "\n" for k, v in NEW.items()))
    model = tmp_path / "model"
    ok("train", data, "-o", model, "--label-texts", texts, "--calibrate", "--quiet")
    out = tmp_path / "out.jsonl"
    ok("predict", model, "--text", "a volcano and its lava", "-k", "99", "-o", out)
    found = json.loads(out.read_text())
    assert "volcanoes" in found["labels"][:5]
    assert sorted(found["without_rows"]) == sorted(NEW)
    shown = ok("explain", model, "lava", "--label", "volcanoes")
    assert "the text about this label adds +" in shown
    facts = json.loads(ok("inspect", model, "--json"))
    assert facts["predicted by a text"] == 2
    more = tmp_path / "more.txt"
    more.write_text("crates\n")
    added = json.loads(ok("add-labels", model, "--label-texts", more, "--json"))
    assert added["names"] == ["crates"]
    numeric = tmp_path / "numeric.txt"
    numeric.write_text("2 3 1\n0 0:1\n 1:1\n")
    result = run("train", numeric, "-o", tmp_path / "no", "--label-texts", "names")
    assert "--label-texts is for texts, but" in result.output
    result = run("add-labels", model)
    assert result.exit_code == 2
    assert "give either DATA or --label-texts" in result.output


def test_the_estimator_takes_texts_of_labels(data):
    rows = read(data)
    texts, labels = [row["text"] for row in rows], [row["labels"] for row in rows]
    clf = DiSMECTextClassifier(calibrate=True, label_texts=NEW).fit(texts, labels)
    assert "volcanoes" in clf.classes_
    assert "volcanoes" in clf.predict_topk(["lava of a volcano"], k=3)[0][0].tolist()
    with pytest.raises(DataError, match="label_texts needs lists of labels"):
        DiSMECTextClassifier(label_texts=True).fit(texts, [label[0] for label in labels])


def test_the_share_of_a_label_declines_with_its_rows():
    vectors = matches(vocabulary_of("egg"), None, ["egg", "egg"])
    counts = np.array([1, 100])
    found = module.added_weights(vectors, counts, 0.5, np.zeros(2, bool), 1.0, 1).toarray()
    np.testing.assert_allclose(found[:, 0], [0.5, 0.5 * 100**-0.3], rtol=1e-6)
