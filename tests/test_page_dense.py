"""The page of models with numeric input: dense features, alone or with a text, and pairs."""

from __future__ import annotations

import numpy as np
import pytest

import browsing
import dismec
from browsing import CONTRAST, expect
from dismec import open_model
from servers import serving
from test_dense import NAMES, TEXTS, dense_problem, embeddings_of
from test_server import features

pytestmark = [browsing.needs_chromium, pytest.mark.slow]
browser, visit = browsing.browser, browsing.visit

NARROW = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page dense")
    X, E, Y = dense_problem(rows=200, features=30)
    dismec.train([E], Y, folder / "alone")
    dismec.train([X, E], Y, folder / "both")
    clf = dismec.DiSMECTextClassifier().fit([TEXTS, embeddings_of()], NAMES)
    clf.save(folder / "texts")
    np.save(folder / "E.npy", E)
    np.save(folder / "one.npy", E[4].astype(np.float64))
    np.save(folder / "half.npy", E[4].astype(np.float16))
    np.save(folder / "columns.npy", np.asfortranarray(E))
    np.save(folder / "big-endian.npy", E.astype(">f4"))
    np.save(folder / "whole.npy", np.ones((2, 20), np.int64))
    np.save(folder / "narrow.npy", E[:, :19])
    np.save(folder / "cube.npy", np.ones((2, 3, 4), np.float32))
    (folder / "cut.npy").write_bytes((folder / "one.npy").read_bytes()[:-8])
    (folder / "text.npy").write_text("0.5, 0.25, 1\n")
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    with serving(folder, folder / "alone") as running:
        yield running


@pytest.fixture(scope="module")
def texts(folder):
    with serving(folder, folder / "texts") as running:
        yield running


def listed(page):
    return page.locator("#list .name")


def best(folder, name, X, k=5):
    labels = open_model(folder / name).predict_topk(X, k)[0][0]
    return [f"Label {label}" for label in labels.tolist()]


def test_numbers_are_accepted_as_json_csv_or_as_numpy_prints_them(alone, folder, visit):
    page = visit(alone)
    expect(page.locator("#dense-state")).to_have_text("The model needs 20 dense features.")
    expect(page.locator("#text")).to_be_hidden()
    expect(page.locator("#batch-panel")).to_be_hidden()
    ways = ("[{}]", ", "), ("{}", ","), ("{}\n", "\n"), ("[{}]", " "), ("[[{}]]", ",")
    for row, (around, between) in zip(np.load(folder / "E.npy"), ways, strict=False):
        spelled = between.join(repr(float(value)) for value in row)
        page.fill("#dense", around.format(spelled))
        expect(listed(page)).to_have_text(best(folder, "alone", row[None]))
        expect(page.locator("#dense-state")).to_have_text("20 dense features, as the model needs.")


def test_npy_file_fills_the_field(alone, folder, visit):
    page = visit(alone)
    for file in ("one.npy", "half.npy", "E.npy", "columns.npy", "big-endian.npy"):
        page.set_input_files("#dense-file", folder / file)
        expect(page.locator("#dense-state")).to_have_text("20 dense features, as the model needs.")
        array = np.load(folder / file)
        row = np.float32(array if array.ndim == 1 else array[0])
        expect(listed(page)).to_have_text(best(folder, "alone", row[None]))
        written = page.evaluate("parseVector(at('dense').value)")
        np.testing.assert_array_equal(np.float32(written), row)
        assert page.locator("#dense-rows").is_visible() == (array.ndim == 2)
        page.click("#clear")
        expect(page.locator("#dense-state")).to_have_text("The model needs 20 dense features.")


def test_row_of_a_npy_file_is_chosen_from_1(alone, folder, visit):
    page = visit(alone)
    for file, number in (("E.npy", 200), ("columns.npy", 7)):
        page.set_input_files("#dense-file", folder / file)
        expect(page.locator("#dense-rows")).to_have_text("Row of 200")
        page.fill("#dense-row", str(number))
        page.locator("#dense-row").blur()
        row = np.load(folder / "E.npy")[number - 1]
        expect(listed(page)).to_have_text(best(folder, "alone", row[None]))
    page.locator("#dense").press("End")
    page.keyboard.type(" ")  # after an edit it is no longer a row of the file
    expect(page.locator("#dense-rows")).to_be_hidden()


def test_file_that_does_not_fit_is_refused_with_both_widths(alone, folder, visit):
    page = visit(alone)
    for file, reason in {
        "narrow.npy": "narrow.npy has 19 dense features per row; the model needs 20.",
        "whole.npy": "whole.npy holds i8, not float16, float32 or float64",
        "cube.npy": "cube.npy has 3 dimensions: expected one row of numbers",
        "cut.npy": "cut.npy is truncated",
        "text.npy": "text.npy is not a .npy file.",
    }.items():
        page.set_input_files("#dense-file", folder / file)
        expect(page.locator("#dense-state")).to_contain_text(reason)
        expect(page.locator("#list")).to_be_hidden()


def test_invalid_numbers_are_reported_and_no_request_is_sent(alone, visit):
    page = visit(alone)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    for given, reason in {
        "[1, 2, 3]": "3 dense features given; the model needs 20.",
        "1": "1 dense feature given; the model needs 20.",
        "1, x, 3": "“x” is not a number (number 2 of 3).",
    }.items():
        page.fill("#dense", given)
        expect(page.locator("#dense-state")).to_have_text(reason)
        expect(page.locator("#nothing")).to_have_text(reason)
        page.click("button.main")
        expect(page.locator("#nothing")).to_have_text(reason)
    assert [url for url in asked if url.endswith("/predict")] == []
    page.click("#clear")
    expect(page.locator("#dense")).to_have_value("")
    page.click("button.main")
    expect(page.locator("#nothing")).to_have_text("Enter dense features first.")
    expect(page.locator("#dense")).to_be_focused()


def test_embedding_is_one_line_of_an_explanation(alone, folder, visit):
    row = np.load(folder / "E.npy")[3]
    page = visit(alone)
    page.fill("#dense", str(row.tolist()))
    expect(page.locator("#terms tbody th")).to_have_text(["embedding (20 dense features)"])
    expect(page.locator("#sum")).to_contain_text("every row starts at")
    expect(page.locator("#sum")).to_contain_text("its embedding adds")
    expect(page.locator("#copy")).to_be_hidden()


def test_text_and_dense_features_are_sent_together(texts, folder, visit):
    page = visit(texts)
    page.fill("#text", TEXTS[0])
    expect(page.locator("#nothing")).to_have_text(
        "No dense features given; the model needs 6 in addition to the text."
    )
    expect(page.locator("#batch-panel")).to_be_hidden()
    vector = embeddings_of()[0]
    page.fill("#dense", str(vector.tolist()))
    model = open_model(folder / "texts")
    labels = model.predict_topk([TEXTS[:1], vector[None]], model.n_labels)[0][0]
    expect(listed(page)).to_have_text([model.names[label] for label in labels.tolist()])
    heads = page.locator("#terms tbody th")
    # never folded, however small its contribution
    expect(heads.filter(has_text="embedding (6 dense features)")).to_be_visible()
    assert heads.count() > 1  # words as well
    expect(page.locator("#sum")).to_contain_text("its words add")
    expect(page.locator("#copy mark").first).to_be_visible()
    page.fill("#text", "")
    expect(page.locator("#nothing")).to_have_text("Type or paste a text first.")


def test_feature_pairs_are_accepted_with_dense_features(folder, visit):
    X, E, _ = dense_problem(rows=200, features=30)
    with serving(folder, folder / "both") as server:
        page = visit(server, failures=["400"])
        page.fill("#dense", str(E[2].tolist()))
        row = " ".join(f"{feature}:{value!r}" for feature, value in features(X, 2))
        page.fill("#features", row)
        expect(listed(page)).to_have_text(best(folder, "both", [X[[2]], E[2:3]]))
        expect(page.locator("#terms tbody th").filter(has_text="feature ").first).to_be_visible()
        page.fill("#features", "3=1")
        expect(page.locator("#nothing")).to_contain_text("“3=1” is not a feature with a value")
        page.fill("#features", "77:1")
        expect(page.locator("#notice")).to_contain_text("feature 77 is outside 0 … 29")


def test_a_numeric_model_has_a_form_for_pairs(problem_data, tmp_path, visit):
    X, Y = problem_data
    dismec.train(X, Y, tmp_path / "model")
    with serving(tmp_path, tmp_path / "model") as server:
        page = visit(server)
        page.fill("#features", str([list(pair) for pair in features(X, 5)]))
        expect(listed(page)).to_have_text(best(tmp_path, "model", X[[5]]))
        expect(page.locator("#text")).to_be_hidden()
        expect(page.locator("#dense")).to_be_hidden()
        expect(page.locator("#example")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_form_fits_a_phone_with_enough_contrast(texts, visit, scheme):
    page = visit(texts, color_scheme=scheme, reduced_motion="reduce", **NARROW)
    page.fill("#text", TEXTS[0])
    page.fill("#dense", str(embeddings_of()[0].tolist()))
    expect(page.locator("#terms tbody th").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate(CONTRAST)[0] >= 4.5
    page.fill("#dense", "1")
    expect(page.locator("#dense-state")).to_contain_text("1 dense feature given")
    ratio, text = page.evaluate(CONTRAST)
    assert ratio >= 4.5, text
