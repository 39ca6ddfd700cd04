"""The tree of labels on a server: its endpoint, and the page in a real browser."""

from __future__ import annotations

import json
import subprocess
import sys
from urllib.parse import urlencode

import numpy as np
import pytest

import browsing
from browsing import CONTRAST, expect
from dismec import Hierarchy, open_model
from dismec.serve.label_filter import ServedTree
from servers import serving

needs_chromium = browsing.needs_chromium
browser, visit = browsing.browser, browsing.visit

GROUPS = {"dogs": "animals", "cats": "animals", "birds": "animals", "trees": "plants"}
N_BIRDS = 120
NARROW = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def labels_of(group):
    return [f"{group[:-1]} {i}" for i in range(N_BIRDS if group == "birds" else 3)]


# dogs, cats, birds and trees are labels, animals and plants are groups; "alone" is in no pair.
PAIRS = [
    *GROUPS.items(),
    *((label, group) for group in GROUPS for label in labels_of(group)),
    ("bird 0", "plants"),
]
LABELS = [*GROUPS, *(label for group in GROUPS for label in labels_of(group)), "alone"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A text model, in which each label of a text adds one word, and a hierarchy."""
    folder = tmp_path_factory.mktemp("tree")
    rng = np.random.default_rng(0)
    with (folder / "texts.jsonl").open("w") as file:
        for label in LABELS * 3:
            words = [label.replace(" ", "x"), *rng.choice(["the", "and", "was"], 2)]
            file.write(json.dumps({"text": " ".join(words), "labels": [label]}) + "\n")
    (folder / "tree.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    command = ["train", folder / "texts.jsonl", "-o", folder / "model", "--quiet"]
    subprocess.run([sys.executable, "-m", "dismec", *map(str, command)], check=True)
    return folder


@pytest.fixture(scope="module")
def plain(folder):
    """A server without a hierarchy."""
    with serving(folder, folder / "model") as running:
        yield running


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder, folder / "model", "--hierarchy", str(folder / "tree.tsv")) as running:
        yield running


def nodes_of(server, **query):
    status, _, answer = server.ask("GET", f"/tree?{urlencode(query)}")
    assert status == 200, answer
    return answer


def below(group):
    """Return the labels below a group, including itself if it is one."""
    found, fresh = {group}, [group]
    while fresh:
        fresh = [child for child, parent in PAIRS if parent in fresh]
        found.update(fresh)
    return found & set(LABELS)


def test_children_are_returned_in_pages(server):
    top = nodes_of(server)
    assert [node["name"] for node in top["nodes"]] == ["animals", "plants", "alone"]
    animals, plants, alone = top["nodes"]
    assert not top["more"]
    assert (animals["is_label"], animals["children"]) == (False, 3)
    assert animals["labels"] == len(below("animals"))
    assert plants["labels"] == len(below("plants"))
    assert "rows" not in animals
    assert (alone["is_label"], alone["children"], alone["rows"]) == (True, 0, 3)
    first = nodes_of(server, node=animals["node"])["nodes"]
    assert first[0]["name"] == "birds"  # largest first
    some = nodes_of(server, node=first[0]["node"], start=100, limit=15)
    assert len(some["nodes"]) == 15
    assert some["more"]
    rest = nodes_of(server, node=first[0]["node"], start=115, limit=15)
    assert len(rest["nodes"]) == 5
    assert not rest["more"]
    names = [node["name"] for node in some["nodes"] + rest["nodes"]]
    every = [n["name"] for n in nodes_of(server, node=first[0]["node"], limit=500)["nodes"]]
    assert names == every[100:]
    assert sorted(every) == sorted(labels_of("birds"))


def test_search_finds_groups_and_labels_with_their_paths(server):
    found = nodes_of(server, search="AnI")["nodes"]
    assert [(node["name"], node["path"]) for node in found] == [("animals", [])]
    found = nodes_of(server, search="dog", limit=3)
    assert [node["path"] for node in found["nodes"]] == [["animals", "dogs"]] * 3
    assert found["more"]
    assert nodes_of(server, search="dogs")["nodes"][0]["path"] == ["animals"]
    # with several parents, the path goes through the first
    assert nodes_of(server, search="bird 0")["nodes"][0]["path"] == ["animals", "birds"]


def test_answers_have_the_paths_of_labels(server):
    answer = server.predict({"text": "dogx1", "k": 2})[2]
    assert answer["names"][0] == "dog 1"
    assert answer["paths"][0] == ["animals", "dogs"]
    many = server.predict({"rows": [{"text": "dogx1"}, {"text": "alone"}], "k": 1})[2]["rows"]
    assert [row["paths"] for row in many] == [[["animals", "dogs"]], [[]]]
    body = json.dumps({"text": "dogx1", "label": "tree 0"})
    assert server.ask("POST", "/explain", body)[2]["path"] == ["plants", "trees"]


@pytest.mark.parametrize("group", ["animals", "dogs", "plants", "alone", "dog 2"])
def test_predictions_restricted_to_a_group_have_the_same_scores(server, folder, group):
    model = open_model(folder / "model")
    labels, scores = model.predict_topk(["dogx1 treex2"], 4, allowed=sorted(below(group)))
    answer = server.predict({"text": "dogx1 treex2", "k": 4, "below": group})[2]
    n = int((labels >= 0).sum())
    assert answer["labels"] == labels[0, :n].tolist()
    assert np.float32(answer["scores"]).tolist() == scores[0, :n].tolist()
    both = server.predict({"text": "dogx1", "k": 9, "below": group, "prefix": "dog"})[2]
    assert set(both["names"]) <= {name for name in below(group) if name.startswith("dog")}


def test_a_group_is_given_by_number_too(server):
    dogs = nodes_of(server, search="dogs")["nodes"][0]["node"]
    one, other = ({"text": "dogx1", "k": 3, "below": group} for group in (dogs, "dogs"))
    assert server.predict(one)[2] == server.predict(other)[2]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"below": "nobody"}, "the hierarchy has no node 'nobody'"),
        ({"below": 10_000}, "the hierarchy has no node 10000"),
        ({"below": -1}, "the hierarchy has no node -1"),
        ({"below": None}, '"below" is None; expected the number or name of a node'),
        ({"below": 1.5}, '"below" is 1.5; expected the number or name of a node'),
    ],
)
def test_unknown_groups_are_refused(server, body, reason):
    status, _, answer = server.predict({"text": "dogx1", **body})
    assert status == 400
    assert answer["error"].startswith(reason)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("node=10000", "the hierarchy has no node 10000"),
        ("node=dogs", "\"node\" is 'dogs'; expected 0 to"),
        ("limit=501", '"limit" is 501; expected 1 to 500'),
        ("find=a", "unknown key 'find'; known: limit, node, search, start"),
    ],
)
def test_invalid_queries_are_refused(server, query, reason):
    status, _, answer = server.ask("GET", f"/tree?{query}")
    assert status == 400
    assert reason in answer["error"]


def test_a_server_without_a_hierarchy_has_no_tree(plain):
    assert plain.ask("GET", "/tree")[0] == 404
    assert "/tree" not in plain.ask("GET", "/openapi.json")[2]["paths"]
    assert plain.ask("GET", "/model")[2]["hierarchy"] is None
    answer = plain.predict({"text": "dogx1"})[2]
    assert "paths" not in answer
    status, _, answer = plain.predict({"text": "dogx1", "below": "dogs"})
    assert status == 400
    assert "unknown key 'below'" in answer["error"]


def test_the_description_has_the_tree_and_its_example_can_be_sent(server):
    about = server.ask("GET", "/model")[2]["hierarchy"]
    assert about == {"nodes": len(LABELS) + 2, "groups": 2, "levels": 3}
    document = server.ask("GET", "/openapi.json")[2]
    given = {one["name"]: one["example"] for one in document["paths"]["/tree"]["get"]["parameters"]}
    assert nodes_of(server, **given)["nodes"]


def test_a_bad_hierarchy_is_refused_before_anything_is_served(folder, tmp_path):
    (tmp_path / "bad.tsv").write_text("nobody\tdogs\n")
    command = ["serve", folder / "model", "--port", "0", "--hierarchy", tmp_path / "bad.tsv"]
    done = subprocess.run(
        [sys.executable, "-m", "dismec", *map(str, command)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "bad.tsv:1: 'nobody' is neither a label of the model nor a parent" in done.stderr


def test_reloading_reads_the_hierarchy_again_and_keeps_the_old_one_if_it_is_bad(folder, tmp_path):
    tree, token = tmp_path / "tree.tsv", {"Authorization": "Bearer secret"}
    tree.write_text("dogs\tpets\n")

    def path_of_dogs(server):
        return server.predict({"text": "dogs", "k": 1}, **token)[2]["paths"]

    with serving(tmp_path, folder / "model", "--hierarchy", str(tree), token="secret") as server:
        assert path_of_dogs(server) == [["pets"]]
        tree.write_text("nobody\tpets\n")
        assert server.ask("POST", "/reload", None, token)[0] == 500
        assert path_of_dogs(server) == [["pets"]]
        tree.write_text("dogs\tfriends\n")
        assert server.ask("POST", "/reload", None, token)[0] == 200
        assert path_of_dogs(server) == [["friends"]]


def test_a_deep_tree_of_many_labels_is_answered_a_part_at_a_time():
    """Each answer has as many nodes as requested, whatever the size of the tree."""
    n = 20_000
    names = [f"n{i}" for i in range(n)]
    tree = Hierarchy([(names[i], names[i // 10]) for i in range(1, n)]).over(names)
    served = ServedTree(tree, np.ones(n, np.int64))
    query = {"node": None, "start": 0, "limit": 50, "search": ""}
    (root,) = served.answer(query)["nodes"]
    assert root["labels"] == n - 1
    found = served.answer({**query, "node": root["node"]})["nodes"]
    assert {node["name"] for node in found} == {f"n{i}" for i in range(1, 10)}
    assert served.path(12_345) == ["n0", "n1", "n12", "n123", "n1234"]
    assert len(served.labels_in(1)) == 1 + 10 + 100 + 1000 + 10_000


@needs_chromium
def test_page_opens_the_tree_node_by_node(server, visit):
    page = visit(server)
    asked = []
    page.on("request", lambda r: "/tree" in r.url and asked.append(r.url))
    expect(page.locator("#tree")).to_be_visible()
    assert asked == []
    page.click("#tree > summary")
    items = page.locator("#tree-list > li")
    expect(items).to_have_count(3)
    expect(page.locator("#tree-about")).to_contain_text(f"{len(LABELS)} labels and 2 groups")
    expect(items.first).to_contain_text("group of")
    page.get_by_role("button", name="Children of animals").click()
    page.get_by_role("button", name="Children of birds").click()
    birds = page.locator("#tree-list li li li")
    expect(birds).to_have_count(51)  # plus the button for more
    page.get_by_role("button", name="Show more (70 left)").click()
    expect(birds).to_have_count(101)
    expect(birds.nth(50).locator("button")).to_be_focused()
    page.get_by_role("button", name="Children of animals").click()
    expect(page.locator("#tree-list li")).to_have_count(3)  # folded nodes are removed
    assert len(asked) == 4


@needs_chromium
def test_page_restricts_predictions_to_the_chosen_node(server, visit):
    page = visit(server)
    page.fill("#text", "dogx1 treex2")
    names = page.locator("#list .name")
    expect(names).to_have_count(5)
    page.click("#tree > summary")
    pick = page.get_by_role("button", name="plants", exact=True)
    pick.click()
    expect(page.locator("#filters-state")).to_have_text("Restricted to labels below “plants”.")
    expect(pick).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#list .name", has_text="dog 1")).to_have_count(0)
    expect(names.first).to_have_text("tree 2")
    assert set(names.all_inner_texts()) == below("plants")
    page.click("#tree > summary")  # also shown while the tree is folded
    expect(page.locator("#filters-state")).to_be_visible()
    page.click("#widen")
    expect(page.locator("#list .name", has_text="dog 1")).to_be_visible()
    expect(page.locator("#filters-state")).to_be_hidden()
    page.click("#tree > summary")
    expect(pick).to_have_attribute("aria-pressed", "false")


@needs_chromium
def test_page_shows_the_paths_of_labels(server, visit):
    page = visit(server)
    page.fill("#text", "dogx1")
    first = page.locator("#list li").first
    expect(first.locator(".name")).to_have_text("dog 1")
    expect(first.locator(".path")).to_have_text("animals › dogs")
    expect(page.locator("#why-path")).to_have_text("animals › dogs")
    page.fill("#search", "tree 1")
    page.keyboard.press("Enter")
    wanted = page.locator("#list li", has_text="tree 1")
    expect(wanted.locator(".path")).to_have_text("plants › trees")


@needs_chromium
def test_page_searches_the_tree(server, visit):
    page = visit(server)
    page.click("#tree > summary")
    expect(page.locator("#tree-list > li")).to_have_count(3)
    page.fill("#tree-search", "dog")
    expect(page.locator("#tree-list > li")).to_have_count(4)
    expect(page.locator("#tree-list > li").nth(1).locator(".path")).to_have_text("animals › dogs")
    expect(page.locator("#tree-state")).to_have_text("4 names found.")
    page.get_by_role("button", name="Children of dogs").click()
    expect(page.locator("#tree-list li li")).to_have_count(3)
    page.fill("#tree-search", "zzz")
    expect(page.locator("#tree-state")).to_have_text("No name contains this.")
    page.fill("#tree-search", "")
    expect(page.locator("#tree-list > li")).to_have_count(3)


@needs_chromium
def test_page_of_a_server_without_a_hierarchy_has_no_tree(plain, visit):
    page = visit(plain)
    page.fill("#text", "dogx1")
    expect(page.locator("#list li").first).to_be_visible()
    expect(page.locator("#tree")).to_be_hidden()
    expect(page.locator("#list .path")).to_have_count(0)


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tree_fits_a_phone_with_enough_contrast(server, visit, scheme):
    page = visit(server, color_scheme=scheme, reduced_motion="reduce", **NARROW)
    page.fill("#text", "dogx1")
    page.tap("#tree > summary")
    page.get_by_role("button", name="Children of animals").tap()
    page.get_by_role("button", name="dogs", exact=True).tap()
    expect(page.locator("#filters-state")).to_contain_text("“dogs” and the labels below it")
    expect(page.locator("#list .name").first).to_have_text("dog 1")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for button in page.locator("#tree button:visible, #widen").all():
        assert button.bounding_box()["height"] >= 40
    ratio, text = page.evaluate(CONTRAST)
    assert ratio >= 4.5, text


@needs_chromium
def test_markup_in_names_of_the_tree_is_shown_and_never_run(folder, tmp_path, visit):
    group = "<img src=x onerror=alert(1)>"
    (tmp_path / "tree.tsv").write_text(f"dogs\t{group}\n")
    with serving(tmp_path, folder / "model", "--hierarchy", str(tmp_path / "tree.tsv")) as server:
        page = visit(server)
        page.click("#tree > summary")
        expect(page.locator("#tree-list .name").first).to_have_text(group)
        page.fill("#text", "dogs")
        expect(page.locator("#list .path").first).to_have_text(group)
        assert page.locator("img").count() == 0
