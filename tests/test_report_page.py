"""Pages of `dismec inspect` in a real browser."""

from __future__ import annotations

import csv
import io
import json
import shutil

import pytest

from conftest import random_problem
from dismec import Hierarchy, TrainingParams
from dismec.data.dataset import Dataset
from dismec.report import html_page as page_module
from dismec.report.evaluation import describe_hierarchy, describe_test
from dismec.report.facts import describe_model, describe_texts
from dismec.report.html_page import label_table, page_of
from dismec.report.inspection import write_page
from dismec.training.train import fit

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=20_000)  # generous, for busy machines

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
ODD_NAMES = ['a, "b"', "ÄÖ 東京", "</script><b>x", "=1+1", "two\nlines", "long " * 40]
SIZES = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}

# The lowest contrast ratio of any visible text.
CONTRAST = """() => {
  const parse = color => color.match(/[\\d.]+/g).map(Number);
  const ground = e => {
    const [r, g, b, a = 1] = parse(getComputedStyle(e).backgroundColor);
    return a === 1 ? [r, g, b] : e.parentElement ? ground(e.parentElement) : [255, 255, 255];
  };
  const light = color => {
    const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = color.map(c => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = e => {
    const [ink, paper] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  };
  const hasText = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  return Math.min(...[...document.querySelectorAll("body *")]
    .filter(e => hasText(e) && e.checkVisibility()).map(contrast));
}"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def visit(browser):
    """Return a function that opens a file; checks that it loads nothing and has no errors."""
    contexts, troubles = [], []

    def opened(path, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
        address = path.as_uri()
        page.on("request", lambda r: r.url.startswith((address, "data:")) or troubles.append(r.url))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of a calibrated model with test data ("model") and of texts ("data")."""
    folder = tmp_path_factory.mktemp("pages")
    X, Y = random_problem(labels=120)
    names = [*ODD_NAMES, *(f"label {i}" for i in range(len(ODD_NAMES), 120))]
    model = fit(X, Y, TrainingParams(calibrate=True), names=names)
    model.save(folder / "model")
    tree = Hierarchy((name, names[i % 9]) for i, name in enumerate(names) if i > 8).over(names)
    facts = describe_model(folder / "model")
    facts["test"] = describe_test(model, Dataset(X, Y), tree=tree)
    measured = facts["test"].pop("hierarchy")
    facts["hierarchy"] = describe_hierarchy(tree, model.label_counts, measured)
    write_page(folder / "model.html", "model", facts)
    rows = [
        {"text": f"text {i % 40} " * 20, "labels": [ODD_NAMES[i % 6], "Apples", "dessert"][: i % 4]}
        for i in range(50)
    ]
    rows[0]["labels"] = ["apple", "x" * 300]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_page(folder / "data.html", "texts.jsonl", describe_texts(folder / "texts.jsonl"))
    return folder


def column(page, place):
    return [
        cell.strip() for cell in page.locator(f".labels td:nth-child({place})").all_inner_texts()
    ]


def numbers(cells):
    return [float(cell.replace(",", "")) for cell in cells if cell != "–"]


def test_clicking_a_header_sorts_all_labels_and_again_reverses_them(pages, visit):
    page = visit(pages / "model.html")
    head = page.locator(".labels th", has_text="F1")
    facts = page.evaluate("JSON.parse(document.querySelector('.labels script').textContent)")
    of = {entry["key"]: entry["values"] for entry in facts["columns"]}
    scores = [value for value in of["F1"] if value is not None]
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert numbers(column(page, 7))[0] == pytest.approx(max(scores), abs=0.06)
    assert numbers(column(page, 7)) == sorted(numbers(column(page, 7)), reverse=True)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert numbers(column(page, 7))[0] == pytest.approx(min(scores), abs=0.06)
    page.locator(".labels th").first.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "none"
    assert page.locator(".labels th").first.get_attribute("aria-sort") == "ascending"
    named = [name for name in column(page, 1) if name.startswith("label ")]
    assert named == [f"label {i}" for i in range(6, 6 + len(named))]  # numbers in numeric order


def test_labels_are_filtered_by_name_and_more_are_shown_on_request(pages, visit):
    page = visit(pages / "model.html")
    rows = page.locator(".labels tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Show 70 more").click()
    expect(rows).to_have_count(120)
    page.get_by_label("Filter by name").fill("äö")
    expect(rows).to_have_count(1)
    expect(page.locator(".count")).to_have_text("1 of 120 labels")
    page.get_by_label("Filter by name").fill("no such label")
    expect(rows).to_have_count(0)


@pytest.mark.parametrize("name", ["model", "data"])
def test_the_csv_has_all_labels_with_their_names_intact(pages, visit, name):
    page = visit(pages / f"{name}.html")
    page.get_by_label("Filter by name").fill("label")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    assert download.value.suggested_filename == "labels.csv"
    text = download.value.path().read_bytes().decode("utf-8-sig")
    found = list(csv.DictReader(io.StringIO(text, newline="")))
    names = [row["name"] for row in found]
    assert set(ODD_NAMES[:5]) <= {name.strip() for name in names}
    assert len(found) == (120 if name == "model" else len(set(names)))
    if name == "model":
        assert sorted(int(row["label"]) for row in found) == list(range(120))
        assert {"training rows", "test rows", "precision", "recall", "F1"} < found[0].keys()


def test_the_tree_of_labels_is_unfolded_step_by_step(pages, visit):
    page = visit(pages / "model.html")
    root = page.locator(".tree summary", has_text="label 7 ")
    child = page.locator(".tree p", has_text="label 16 ")
    expect(root).to_be_hidden()
    page.get_by_text("The tree").click()
    expect(root).to_be_visible()
    expect(child).to_be_hidden()
    root.click()
    expect(child).to_be_visible()
    expect(child).to_contain_text("training rows")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["model", "data"])
def test_a_page_can_be_read_on_any_screen(pages, visit, name, scheme, size):
    page = visit(pages / f"{name}.html", viewport=SIZES[size], color_scheme=scheme)
    for details in page.locator("details").all():
        details.evaluate("d => d.open = true")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CONTRAST) >= 4.5
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_headline_comes_first_and_internals_are_folded(pages, visit):
    page = visit(pages / "model.html")
    assert page.locator("h1 + p").inner_text().startswith("For 100.0\xa0% of 300 test rows")
    assert not page.get_by_role("heading", name="Files").is_visible()
    heads = page.locator("h2:visible").all_inner_texts()
    order = ["Reliability", "By training frequency", "All labels"]
    places = [next(i for i, head in enumerate(heads) if head.startswith(what)) for what in order]
    assert places == sorted(places)
    page.get_by_text("Internals").click()
    assert page.get_by_role("heading", name="Files").is_visible()


@pytest.mark.parametrize("name", ["model", "data"])
def test_print_is_white_and_fully_unfolded(pages, visit, name):
    page = visit(pages / f"{name}.html", color_scheme="dark")
    page.evaluate(
        "addEventListener('beforeprint', () => {"
        " window.seen = document.querySelectorAll('details:not([open])').length })"
    )
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.evaluate("seen") == 0
    assert page.locator("details[open]").count() == 0  # as before printing
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("img").first.evaluate("e => getComputedStyle(e).filter") == "none"
    assert not page.get_by_role("button", name="Download CSV").is_visible()


def test_a_page_without_scripts_shows_the_first_labels(pages, visit):
    page = visit(pages / "model.html", java_script_enabled=False)
    assert page.locator(".labels tbody tr").count() == 50
    assert not page.get_by_role("button", name="Download CSV").is_visible()
    assert page.get_by_text("… and 70 more.").is_visible()


def test_a_page_with_very_many_labels_shows_the_most_frequent_and_says_so(
    tmp_path, visit, monkeypatch
):
    monkeypatch.setattr(page_module, "MOST_LABELS", 60)
    columns = {"label": [*range(99)], "name": [f"n{i}" for i in range(99)], "rows": [1] * 99}
    (tmp_path / "a.html").write_text(page_of("x", [label_table(columns, "x.csv")]))
    page = visit(tmp_path / "a.html")
    expect(page.locator(".count")).to_have_text("60 labels")
    assert "The 60 most frequent of 99 labels" in page.locator("body").inner_text()
