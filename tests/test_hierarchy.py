"""Label hierarchies: files, closing upwards, leaves, and metrics by level."""

from __future__ import annotations

import json
import pickle
import time
from functools import cache
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_problem, related
from dismec import DataError, Hierarchy, TrainingParams, open_model, train
from dismec.cli import main
from dismec.data import hierarchy
from dismec.data.dataset import Dataset, save_data
from dismec.measure.breakdown import by_level, by_node
from dismec.report.evaluation import describe_hierarchy
from dismec.report.inspection import hierarchy_sections
from dismec.training.train import fit

# animals is a group, dogs and cats are labels with children, pug has two parents.
PAIRS = [
    ("dogs", "animals"),
    ("cats", "animals"),
    ("pug", "dogs"),
    ("siamese", "cats"),
    ("pug", "small things"),
    ("pebble", "small things"),
]
NAMES = ["pug", "dogs", "cats", "siamese", "pebble", "alone"]


def written(path, text):
    path.write_text(text)
    return path


def refused(path, names=None):
    with pytest.raises(DataError) as caught:
        Hierarchy.load(path).over(names or [])
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"{child}\t{parent}\n" for child, parent in PAIRS),
        "".join(f"{child},{parent}\n" for child, parent in PAIRS),
        "child,parent\n" + "\n".join(f' "{child}",{parent} '.strip() for child, parent in PAIRS),
        "Parent\tChild\r\n\r\n" + "".join(f"{p}\t{c} \r\n" for c, p in [*PAIRS, *PAIRS]),
    ],
    ids=["tabs", "commas", "header", "turned"],
)
def test_a_file_has_a_child_and_a_parent_per_line(tmp_path, text):
    found = Hierarchy.load(written(tmp_path / "tree", text))
    assert {name: found._parents.get(name, []) for name in NAMES} == {
        "pug": ["dogs", "small things"],
        "dogs": ["animals"],
        "cats": ["animals"],
        "siamese": ["cats"],
        "pebble": ["small things"],
        "alone": [],
    }


def test_names_with_commas_and_quotes_are_read_from_csv_and_from_tabs(tmp_path):
    csv = written(tmp_path / "a.csv", '"salt, pepper",spices\n"the ""best""",spices\n')
    assert Hierarchy.load(csv).leaves == ["salt, pepper", 'the "best"']
    tabs = written(tmp_path / "a.tsv", 'salt, pepper\tspices\nthe "best"\tspices\n')
    assert Hierarchy.load(tabs).leaves == ["salt, pepper", 'the "best"']


def test_only_line_feeds_end_a_line(tmp_path):
    odd = "next\x85line\u2028 and more"
    for name, between in (("a.tsv", "\t"), ("a.csv", ",")):
        path = written(tmp_path / name, f"{odd}{between}b\n\nb{between}b\n")
        assert refused(path) == ":3: 'b' is its own parent"
        assert Hierarchy.load(written(path, f"{odd}{between}b\n")).leaves == [odd]


def test_what_is_wrong_is_refused_with_file_and_line(tmp_path):
    def refuses(text, names=None):
        return refused(written(tmp_path / "tree.tsv", text), names)

    assert refuses("a\tb\n\nb\tc\nc\ta\n") == (
        ":4: a cycle of children and parents: 'a' → 'b' → 'c' → 'a'"
    )
    assert refuses("x\ta\na\tb\nb\ta\nc\tx\n").startswith(":3: a cycle")
    assert refuses("a\tb\nb\tb\n") == ":2: 'b' is its own parent"
    assert refuses("a\tb\nc\n").startswith(":2: expected a child and a parent")
    assert refuses("a\tb\nc\td\te\n").startswith(":2: expected a child and a parent")
    assert refuses("a\tb\n\t c\n") == ":2: a label without a name"
    assert refuses("a\tb\nc\tb\nd\tb\n", ["a", "d"]) == (
        ":2: 'c' is neither a label of the model nor a parent"
    )
    assert refuses('a,b\n"c,b\n').startswith(":2: ")
    (tmp_path / "bytes").write_bytes(b"a\tb\n\xff\tb\n")
    assert refused(tmp_path / "bytes") == ":2: not UTF-8"
    assert "No such file" in refused(tmp_path / "nothing")


def test_pairs_of_python_are_refused_with_their_number():
    with pytest.raises(DataError, match="pair index 1: 'b' is its own parent"):
        Hierarchy([("a", "b"), ("b", "b")])


def test_a_long_cycle_is_reported_in_one_short_line():
    pairs = [(f"n{i}", f"n{(i + 1) % 5000}") for i in range(5000)]
    with pytest.raises(DataError, match="pair index 4999: a cycle") as caught:
        Hierarchy(pairs)
    assert len(str(caught.value)) < 200


def test_levels_count_from_roots_and_a_child_is_below_all_its_parents():
    found = Hierarchy([*PAIRS, ("siamese", "small things")])
    assert found.levels(["animals", "dogs", "pug", "pebble", "siamese", "alone"]).tolist() == [
        1, 2, 3, 2, 3, 1,
    ]  # fmt: skip
    assert set(found.leaves) == {"pug", "siamese", "pebble"}
    assert found.ancestors("pug") == ["dogs", "small things", "animals"]
    assert found.closed([["pug", "cats"], [], ["alone"]]) == [
        ["pug", "cats", "dogs", "small things", "animals"],
        [],
        ["alone"],
    ]
    assert pickle.loads(pickle.dumps(found)).names == found.names


def test_a_hierarchy_without_pairs_has_isolated_labels():
    tree = Hierarchy([]).over(NAMES)
    assert tree.leaves.all()
    assert tree.levels.tolist() == [1] * 6


@cache
def tree():
    return Hierarchy(PAIRS).over(NAMES)


def test_groups_are_nodes_after_the_labels():
    assert list(tree().names) == [*NAMES, "animals", "small things"]
    assert tree().leaves.tolist() == [True, False, False, True, True, True]
    assert tree().labels_below.tolist() == [0, 1, 1, 0, 0, 0, 4, 2]


def random_tree(rng, n_labels, n_groups):
    """Generate labels and groups with up to two parents each among those before them."""
    names = [f"n{i}" for i in range(n_labels + n_groups)]
    order = rng.permutation(len(names))
    pairs = [
        (names[order[i]], names[order[j]])
        for i in range(1, len(names))
        for j in set(rng.integers(0, i, rng.integers(0, 3)).tolist())
    ]
    # Every group has a label below it: otherwise it would be an unknown name.
    pairs += [(f"below {i}", names[i]) for i in range(n_labels, len(names))]
    labels = names[:n_labels] + [f"below {i}" for i in range(n_labels, len(names))]
    hierarchy = Hierarchy(pairs)
    return hierarchy, hierarchy.over(labels)


def with_ancestors(hierarchy, names):
    return {name for own in names for name in (own, *hierarchy.ancestors(own))}


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_metrics_by_level_equal_those_of_sets_with_ancestors(seed):
    rng = np.random.default_rng(seed)
    hierarchy, found = random_tree(rng, 12, 4)
    labels = found.names[: found.n_labels]
    Y = sp.csr_array((rng.random((9, found.n_labels)) < 0.2).astype(np.uint8))
    top = np.array([rng.permutation(found.n_labels)[:5] for _ in range(9)])
    top[rng.random(top.shape) < 0.2] = -1
    result = by_level(Y, top, found, (1, 3))
    level_of = dict(zip(found.names, found.levels.tolist(), strict=True))
    assert level_of == dict(zip(found.names, hierarchy.levels(found.names).tolist(), strict=True))
    for k in (1, 3):
        counts = np.zeros((3, found.levels.max() + 1), np.int64)  # true, predicted, both
        for row in range(9):
            truth = with_ancestors(hierarchy, [labels[i] for i in Y[[row]].indices])
            said = with_ancestors(hierarchy, [labels[i] for i in top[row, :k] if i >= 0])
            for place, names in enumerate((truth, said, truth & said)):
                for name in names:
                    counts[place, level_of[name]] += 1
        for entry in result["levels"]:
            true, predicted, both = counts[:, entry["level"]]
            assert entry["true pairs"] == true
            assert entry[f"hP@{k}"] == pytest.approx(100 * both / max(predicted, 1))
            assert entry[f"hR@{k}"] == pytest.approx(100 * both / max(true, 1))
            assert entry["nodes"] == list(level_of.values()).count(entry["level"])
        true, predicted, both = counts.sum(axis=1)
        assert result[f"hP@{k}"] == pytest.approx(100 * both / max(predicted, 1))
        assert result[f"hF1@{k}"] == pytest.approx(200 * both / max(predicted + true, 1))


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=20)
def test_weight_2_equals_repeating_the_row_at_every_level(seed):
    rng = np.random.default_rng(seed)
    _, found = random_tree(rng, 12, 4)
    Y = sp.csr_array((rng.random((9, found.n_labels)) < 0.2).astype(np.uint8))
    top = np.array([rng.permutation(found.n_labels)[:3] for _ in range(9)])
    weights = rng.integers(0, 3, 9)
    rows = np.repeat(np.arange(9), weights)
    result = by_level(Y, top, found, (1, 3), weights)
    wanted = by_level(Y[rows], top[rows], found, (1, 3))
    for entry, its in zip([result, *result["levels"]], [wanted, *wanted["levels"]], strict=True):
        for key in entry.keys() - {"levels", "true pairs"}:
            assert entry[key] == pytest.approx(its[key]), key
    kept = np.flatnonzero(weights)
    pairs = by_level(Y[kept], top[kept], found, (1,))["levels"]
    assert [e["true pairs"] for e in result["levels"]] == [e["true pairs"] for e in pairs]


def test_a_wrong_label_with_the_right_parent_is_right_one_level_up():
    names = ["a1", "a2", "b1"]
    found = Hierarchy([("a1", "a"), ("a2", "a"), ("b1", "b")]).over(names)
    Y = sp.csr_array(np.array([[1, 0, 0], [0, 0, 1]]))
    result = by_level(Y, np.array([[1], [0]]), found, (1,))
    assert [entry["hP@1"] for entry in result["levels"]] == [50, 0]
    counts = by_node(Y, np.array([[1], [0]]), found)
    assert counts["rows"].tolist() == [1, 0, 1, 1, 1]
    assert counts["predicted"].tolist() == [1, 1, 0, 2, 0]
    assert counts["hits"].tolist() == [0, 0, 0, 1, 0]


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_closing_a_ranking_gives_ancestors_the_highest_score_below_them(seed):
    rng = np.random.default_rng(seed)
    hierarchy, found = random_tree(rng, 12, 4)
    top = np.array([rng.permutation(found.n_labels)[:4] for _ in range(6)], np.int32)
    scores = -np.sort(-rng.integers(0, 4, top.shape).astype(np.float32), axis=1)
    empty = rng.random(top.shape) < 0.3
    top[empty], scores[empty] = -1, -np.inf
    closed, values = found.add_ancestors(top, scores)
    numbers = {name: i for i, name in enumerate(found.names)}
    for row in range(6):
        best: dict[int, float] = {}
        for label, score in zip(top[row].tolist(), scores[row].tolist(), strict=True):
            if label >= 0:
                for name in with_ancestors(hierarchy, [found.names[label]]):
                    if numbers[name] < found.n_labels:
                        best[numbers[name]] = max(best.get(numbers[name], -np.inf), score)
        order = sorted(best, key=lambda node: (-best[node], found.levels[node], node))
        filled = closed[row] >= 0
        assert closed[row][filled].tolist() == order
        assert values[row][filled].tolist() == [best[node] for node in order]
        assert (values[row][~filled] == -np.inf).all()


def test_closing_an_empty_ranking_leaves_it_empty():
    none = np.full((2, 3), -1, np.int32), np.full((2, 3), -np.inf, np.float32)
    closed, values = tree().add_ancestors(*none)
    assert closed.shape == values.shape == (2, 0)


@pytest.mark.parametrize("rank", ["score", "probability"])
@pytest.mark.parametrize("refine", [False, True])
def test_ranking_only_leaves_gives_the_same_bits(rank, refine):
    X, Y = related()
    model = fit(X, Y, TrainingParams(calibrate=True, refine=refine))
    assert bool(model.manifest.refined) is refine
    wanted = np.zeros(model.n_labels, np.bool_)
    wanted[[1, 4, 5, 12, 20]] = True
    top, values = model.predict_topk(X, model.n_labels, rank=rank)
    keep = wanted[np.maximum(top, 0)] & (top >= 0)
    expected = [(row[k], v[k]) for row, v, k in zip(top, values, keep, strict=True)]
    found = model.predict_topk(X, 5, rank=rank, allowed=np.flatnonzero(wanted))
    for mine, its in zip(zip(*found, strict=True), expected, strict=True):
        np.testing.assert_array_equal(mine[0][mine[0] >= 0], its[0])
        np.testing.assert_array_equal(mine[1][mine[0] >= 0], its[1])


LABELS = [f"label {i}" for i in range(40)]
# Labels 0 to 3 are parents of the others, and the group is above labels 0 and 1.
LINES = [
    *(f"label {i}\tlabel {i % 4}" for i in range(4, 40)),
    "label 0\tthe group",
    "label 1\tthe group",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hierarchy")
    train(*random_problem(), folder / "model", names=LABELS)
    X, Y = random_problem(seed=1)
    save_data(Dataset(X, Y, LABELS), folder / "test.xmc")
    (folder / "tree.tsv").write_text("\n".join(LINES) + "\n")
    return folder


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def told(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def ask(files, *options):
    arguments = ["predict", files / "model", files / "test.xmc", "--hierarchy", files / "tree.tsv"]
    return [
        json.loads(line)
        for line in told(*arguments, "--format", "jsonl", *options).split("\n")[:-1]
    ]


def parent(name):
    return f"label {int(name.split()[1]) % 4}"


def test_ancestors_of_predictions_are_added(files):
    options = files / "test.xmc", "-k", 3, "--format", "jsonl"
    plain = list(map(json.loads, told("predict", files / "model", *options).splitlines()))
    closed = ask(files, "-k", 3, "--add-ancestors")
    assert len(closed) == 300
    for before, after in zip(plain, closed, strict=True):
        scores = dict(zip(after["labels"], after["scores"], strict=True))
        assert set(scores) == {*before["labels"], *map(parent, before["labels"])}
        assert after["scores"] == sorted(after["scores"], reverse=True)
        for label, score in zip(before["labels"], before["scores"], strict=True):
            assert scores[parent(label)] >= scores[label] >= score


def test_predictions_are_of_leaves_only_and_exact(files):
    found = ask(files, "-k", 5, "--leaves-only")
    top, scores = open_model(files / "model").predict_topk(random_problem(seed=1)[0], 40)
    for row, labels, values in zip(found, top.tolist(), scores.tolist(), strict=True):
        best = [(LABELS[i], v) for i, v in zip(labels, values, strict=True) if i >= 4][:5]
        assert row["labels"] == [name for name, _ in best]
        assert row["scores"] == pytest.approx([v for _, v in best], rel=1e-6)
    both = ask(files, "-k", 1, "--leaves-only", "--add-ancestors")
    assert all(len(row["labels"]) == 2 for row in both)
    reached = ask(files, "--threshold", 0, "--leaves-only")
    assert not {label for row in reached for label in row["labels"]} & set(LABELS[:4])
    assert ask(files, "--aim", "psp", "--leaves-only", "-k", 2)[0]["labels"]


def test_evaluate_reports_levels(files):
    options = files / "model", files / "test.xmc", "--hierarchy", files / "tree.tsv"
    found = json.loads(told("evaluate", *options, "--json"))
    plain = json.loads(told("evaluate", *options[:2], "--json"))
    assert {key: found[key] for key in plain} == plain
    assert [entry["level"] for entry in found["levels"]] == [1, 2, 3]
    assert [entry["nodes"] for entry in found["levels"]] == [3, 20, 18]
    assert found["levels"][0]["hP@1"] >= found["levels"][2]["hP@1"]
    text = told("evaluate", *options)
    assert "By level of the hierarchy" in text
    assert "hP" in text


def test_evaluate_weighs_rows_at_every_level(files, tmp_path):
    options = files / "model", files / "test.xmc", "--hierarchy", files / "tree.tsv", "--json"
    weights = np.random.default_rng(0).uniform(0, 2, 300)
    np.save(tmp_path / "weights.npy", weights)
    found = json.loads(told("evaluate", *options, "--weights", tmp_path / "weights.npy"))
    X, Y = random_problem(seed=1)
    top, _ = open_model(files / "model").predict_topk(X, 5)
    hierarchy = Hierarchy.load(files / "tree.tsv").over(LABELS)
    wanted = by_level(Y, top, hierarchy, (1, 3, 5), weights)
    plain = json.loads(told("evaluate", *options))
    for key in ("hP@1", "hR@5", "hF1@3"):
        assert found[key] == round(wanted[key], 2)
        assert found[key] != plain[key]
    for entry, its in zip(found["levels"], wanted["levels"], strict=True):
        assert entry == {key: round(value, 2) for key, value in its.items()}


def test_inspect_shows_the_tree_with_counts_and_metrics(files, tmp_path):
    options = files / "model", "--hierarchy", files / "tree.tsv"
    found = json.loads(told("inspect", *options, "--json"))["hierarchy"]
    assert [entry["labels"] for entry in found["levels"]] == [2, 20, 18]
    assert found["nodes"]["name"][-1] == "the group"
    assert found["nodes"]["labels below"][-1] == 20
    page = tmp_path / "page.html"
    assert "By level" in told("inspect", *options, "--test", files / "test.xmc", "--html", page)
    text = page.read_text()
    assert text.count("<details") == text.count("</details>")
    assert 'the group <span class="note">group of 20 labels,' in text
    assert "hP@5, %" in text
    shown = text.partition('class="tree"')[2]
    assert all(f">{name} <" in shown for name in LABELS)


def test_the_tree_of_a_page_shows_a_shared_child_once_in_full():
    pairs = [("x", "a"), ("x", "b"), ("y", "x"), ("<b>", "x")]
    shown = Hierarchy(pairs).over(["x", "y", "<b>", "a", "b"])
    facts = describe_hierarchy(shown, np.array([1, 2, 3, 4, 5]))
    text = "".join(hierarchy_sections(facts))
    assert text.count("see above") == 1
    assert text.count("y <span") == 1
    assert "&lt;b&gt; <span" in text
    assert "<b>" not in text


def test_commands_refuse_incompatible_options(files, tmp_path):
    def line(*arguments):
        result = run(*arguments)
        assert result.exit_code == 2, result.output
        return result.stderr.strip().splitlines()[-1]

    model, test, tree_file = (files / name for name in ("model", "test.xmc", "tree.tsv"))
    assert "require --hierarchy" in line("predict", model, test, "--add-ancestors")
    assert "require --hierarchy" in line("predict", model, test, "--leaves-only")
    assert "needs a model" in line("inspect", test, "--hierarchy", tree_file)
    wrong = written(tmp_path / "wrong.tsv", "label 3\tlabel 4\nlabel 77\tlabel 3\n")
    assert "--hierarchy requires --add-ancestors or --leaves-only" in line(
        "predict", model, test, "--hierarchy", tree_file
    )
    for command, *options in (("predict", "--leaves-only"), ("evaluate",)):
        said = line(command, model, test, "--hierarchy", wrong, *options)
        assert said == f"dismec: {wrong}:2: 'label 77' is neither a label of the model nor a parent"
    assert ":2: " in line("inspect", model, "--hierarchy", wrong)


def test_labels_without_names_are_numbers_in_the_file(tmp_path):
    train(*random_problem(labels=4), tmp_path / "model")
    save_data(Dataset(*random_problem(labels=4)), tmp_path / "test.xmc")
    tree_file = written(tmp_path / "tree.csv", "1,0\n2,0\n3,rest\n")
    options = "--hierarchy", tree_file, "--leaves-only", "--format", "jsonl", "-k", 4
    rows = told("predict", tmp_path / "model", tmp_path / "test.xmc", *options).splitlines()
    assert {len(json.loads(row)["labels"]) for row in rows} == {3}


def test_the_cost_of_a_deep_hierarchy_is_proportional_to_its_pairs_of_node_and_ancestor():
    """Four chains: what has been found must not be copied for each further level."""
    n = 2000
    chains = [(f"{i}", f"{i + 1}") for i in range(4 * n) if i % n < n - 1]
    names = [f"{i}" for i in range(4 * n)]
    with mock.patch.object(hierarchy, "MOST_LEVELS", n):
        tree = Hierarchy(chains).over(names)
    begin = time.thread_time()
    assert tree.up.nnz == 4 * n * (n + 1) // 2
    assert time.thread_time() - begin < 10
    labels, _ = tree.add_ancestors(np.full((1, 1), n - 3, np.int32), np.ones((1, 1), np.float32))
    assert labels.tolist() == [[n - 1, n - 2, n - 3]]


def test_a_hierarchy_that_is_too_deep_is_refused_in_one_line(tmp_path):
    pairs = [(f"n{i}", f"n{i + 1}") for i in range(2000)]
    with pytest.raises(DataError, match="'n0' is on level 2001; a hierarchy has at most 100"):
        Hierarchy(pairs)
    file = written(
        tmp_path / "deep.tsv", "".join(f"{child}\t{parent}\n" for child, parent in pairs)
    )
    with pytest.raises(DataError, match=r"deep\.tsv: 'n0' is on level 2001"):
        Hierarchy.load(file)
