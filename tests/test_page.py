"""The page of a text model in a real browser, on a real `dismec serve`."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
import subprocess
from itertools import pairwise

import pytest

import browsing
from browsing import CONTRAST, PHONE, expect
from conftest import BASE, LABELS, related
from dismec import TrainingParams
from dismec.training.train import train_text
from servers import serving

pytestmark = browsing.needs_chromium
browser, visit = browsing.browser, browsing.visit
TEXT = "One apple, one banana; one pear by one harbour."
MARKUP = next(name for name in LABELS if "<img" in name)


@pytest.fixture(scope="module")
def server(text_files):
    with serving(text_files, text_files / "calibrated") as running:
        yield running


def first_label(page):
    return page.locator("#list li .name").first


def marked(page, kind="for"):
    return page.locator(f"#copy mark.{kind}")


def paste(page, text):
    page.evaluate(
        "text => { const field = document.getElementById('text'); field.value = text;"
        " field.dispatchEvent(new Event('input')); }",
        text,
    )


def test_ranked_labels_appear_with_bars_of_their_probabilities(server, visit):
    page = visit(server)
    expect(page.locator("#nothing")).to_be_visible()
    expect(page.locator("h1")).to_have_text("calibrated")
    page.fill("#text", TEXT)
    expect(first_label(page)).to_have_text("fruit")
    expect(page.locator("#list li")).to_have_count(5)
    expect(page.locator("#status")).to_contain_text("First: fruit")
    expect(page.locator("#scale")).not_to_contain_text("not probabilities")
    page.wait_for_timeout(400)  # bars are animated
    amounts = [
        float(re.search(r"\d+", text)[0]) for text in page.locator(".amount").all_inner_texts()
    ]
    assert all("%" in text for text in page.locator(".amount").all_inner_texts())
    shares = page.evaluate(
        "[...document.querySelectorAll('.bar i')]"
        ".map(i => i.offsetWidth / i.parentElement.offsetWidth)"
    )
    assert amounts == sorted(amounts, reverse=True)
    for amount, share in zip(amounts, shares, strict=True):
        assert abs(amount / 100 - share) < 0.02
    page.select_option("#count", "10")
    expect(page.locator("#list li")).to_have_count(len(LABELS))


def test_scores_are_not_passed_off_as_probabilities_and_their_threshold_is_zero(text_files, visit):
    with serving(text_files, text_files / "plain") as server:
        page = visit(server)
        page.fill("#text", TEXT)
        expect(first_label(page)).to_have_text("fruit")
        expect(page.locator("#scale")).to_contain_text("not probabilities")
        assert re.fullmatch(r"[+−]\d+\.\d\d", page.locator(".amount").first.inner_text())
        line = page.locator(".bar b").first
        expect(line).to_be_visible()
        assert line.evaluate("e => e.style.left") == "50%"


def test_hover_shows_the_words_that_contributed_most(server, visit):
    page = visit(server)
    page.fill("#text", TEXT)
    expect(marked(page).first).to_have_text("apple")
    option = page.locator("#list li", has_text="ships")
    option.hover()
    expect(page.locator("#why-title")).to_have_text("ships")
    expect(marked(page)).to_have_text(["harbour"])
    expect(page.locator("#terms tbody th").first).to_have_text("harbour")
    page.mouse.move(0, 0)  # back to the selection
    expect(page.locator("#why-title")).to_have_text("fruit")
    assert {"apple", "banana", "pear"} <= set(marked(page).all_inner_texts())
    lines = {
        kind: page.locator(f".key mark.{kind}").evaluate("e => getComputedStyle(e).textDecoration")
        for kind in ("for", "against")
    }
    assert "dotted" in lines["against"]
    assert "dotted" not in lines["for"]


def test_labels_that_make_another_likely_are_named(tmp_path, visit):
    X, Y = related()
    rows = zip(pairwise(X.indptr), pairwise(Y.indptr), strict=True)
    with (tmp_path / "texts.jsonl").open("w") as file:
        for (begin, end), (first, last) in rows:
            counts = zip(X.indices[begin:end], X.data[begin:end].astype(int), strict=True)
            text = " ".join(f"word{i} " * n for i, n in counts)
            labels = [f"label {i}" for i in Y.indices[first:last]]
            file.write(json.dumps({"text": text, "labels": labels}) + "\n")
    params = TrainingParams(tfidf=True, refine=True, calibrate=True)
    assert train_text(tmp_path / "texts.jsonl", tmp_path / "model", params).manifest.refined
    with serving(tmp_path, tmp_path / "model") as server:
        page = visit(server)
        page.fill("#text", "word0 word1 word2 word8 word9 word10")  # the words of labels 0 and 1
        page.get_by_text(f"label {BASE}", exact=True).first.hover()
        expect(page.locator("#why-title")).to_have_text(f"label {BASE}")
        expect(page.locator("#terms tbody th", has_text="likely: label 0")).to_be_visible()
        expect(page.locator("#sum")).to_contain_text("the labels they make likely")


def test_tap_shows_the_words_that_contributed_most(server, visit):
    page = visit(server, **PHONE)
    page.fill("#text", TEXT)
    page.locator("#list li", has_text="ships").tap()
    expect(page.locator("#why-title")).to_have_text("ships")
    expect(marked(page)).to_have_text(["harbour"])
    expect(page.locator("#why h2")).to_be_in_viewport()


def test_keyboard_is_enough(server, visit):
    page = visit(server)
    expect(page.locator("#example")).to_be_visible()
    press = page.keyboard.press
    press("Tab")
    press("Tab")
    page.keyboard.type(TEXT)
    press("Control+Enter")
    expect(first_label(page)).to_have_text("fruit")
    # Find labels, example, clear, number of labels, some labels, several texts, list
    for _ in range(7):
        press("Tab")
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring == "solid"
    assert page.evaluate("document.activeElement.getAttribute('role')") == "option"
    expect(page.locator("#list [aria-selected=true] .name")).to_have_text("fruit")
    press("ArrowDown")
    second = page.locator("#list li").nth(1)
    expect(second).to_be_focused()
    expect(second).to_have_attribute("aria-selected", "true")
    expect(page.locator("#why-title")).to_have_text(second.locator(".name").inner_text())
    press("End")
    expect(page.locator("#list li").last).to_be_focused()
    press("Home")
    expect(page.locator("#why-title")).to_have_text("fruit")
    press("Escape")
    expect(page.locator("#why")).to_be_hidden()
    expect(page.locator("#list [aria-selected=true]")).to_have_count(0)
    press("ArrowDown")
    expect(page.locator("#why")).to_be_visible()


def test_empty_text_is_reported_and_no_request_is_sent(server, visit):
    page = visit(server)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.click("button.main")
    expect(page.locator("#nothing")).to_have_text("Type or paste a text first.")
    expect(page.locator("#text")).to_be_focused()
    page.fill("#text", " \n ")
    page.wait_for_timeout(500)
    assert [url for url in asked if url.endswith("/predict")] == []
    page.fill("#text", TEXT)
    expect(first_label(page)).to_have_text("fruit")
    page.click("#clear")
    expect(page.locator("#list")).to_be_hidden()
    expect(page.locator("#why")).to_be_hidden()
    expect(page.locator("#text")).to_have_value("")


def test_text_without_known_words_is_reported(server, visit):
    page = visit(server)
    page.fill("#text", "Xyzzy!")
    expect(page.locator("#sum")).to_contain_text("No word of this text has a weight for this label")


def test_example_is_a_text_with_labels(server, visit):
    page = visit(server)
    page.click("#example")
    expect(page.locator("#list li").first).to_be_visible()
    expect(marked(page).first).to_be_visible()
    expect(page.locator("#source")).to_have_text("An example from the training data.")


def test_emoji_do_not_shift_the_highlights(server, visit):
    page = visit(server)
    page.fill("#text", "🎉🎉👩‍👩‍👧 𝒜 \U0001f4a9 apple 🎉 banana")
    expect(marked(page)).to_have_text(["apple", "banana"])


@pytest.mark.slow
def test_a_megabyte_stays_quick(server, visit):
    page = visit(
        server,
        script="window.longest = 0; new PerformanceObserver(list => list.getEntries().forEach("
        "e => longest = Math.max(longest, e.duration))).observe({type: 'longtask'});",
    )
    paste(page, "The harbour was full of apple crates. " * 26_300)
    expect(page.locator("#list li").first).to_be_visible(timeout=20_000)
    expect(marked(page).first).to_be_visible(timeout=20_000)
    page.evaluate("longest = 0")
    for name in ("ships", "fruit"):
        page.locator("#list li", has_text=name).hover()
        expect(page.locator("#why-title")).to_have_text(name)
    assert page.evaluate("longest") < 1000
    assert set(marked(page).all_inner_texts()) == {"apple"}
    assert page.locator("#copy *").count() < 2500
    assert len(page.locator("#copy").inner_text()) < 50_000


@pytest.mark.slow
@pytest.mark.parametrize("by_paste", [True, False])
def test_field_holds_only_the_beginning_of_a_long_text(server, visit, by_paste):
    page = visit(server, permissions=["clipboard-read", "clipboard-write"])
    text = "One apple. " * 20_000
    page.locator("#text").focus()
    if by_paste:
        page.evaluate("text => navigator.clipboard.writeText(text)", text)
        page.keyboard.press("Control+V")
        expect(page.locator("#long")).to_be_visible()
        page.keyboard.press("Control+V")  # replaces the old text
    else:
        page.keyboard.insert_text(text)
    expect(page.locator("#long")).to_contain_text("220,000 characters")
    assert len(page.locator("#text").input_value()) < 3000
    expect(first_label(page)).to_have_text("fruit")
    page.locator("#copy mark").nth(100).wait_for()  # far beyond what the field shows
    page.click("#clear")
    expect(page.locator("#long")).to_be_hidden()
    page.keyboard.type(TEXT)
    expect(page.locator("#text")).to_have_value(TEXT)
    expect(first_label(page)).to_have_text("fruit")


@pytest.mark.slow
def test_word_that_is_everywhere_is_marked_in_a_long_text(server, visit):
    page = visit(server)
    paste(page, ("The harbour was full. It goes on like so. " * 50 + "One apple. ") * 200)
    page.locator("#list li", has_text="ships").hover()
    expect(page.locator("#terms tbody th").first).to_have_text("harbour")
    assert "harbour" in marked(page).all_inner_texts()


def test_markup_is_shown_and_never_run(server, visit):
    page = visit(server)
    text = "markup script browser <script>alert(1)</script><img src=x onerror=alert(2)>"
    page.fill("#text", text)
    expect(first_label(page)).to_have_text(MARKUP)
    expect(page.locator("#why-title")).to_have_text(MARKUP)
    expect(page.locator("#copy")).to_have_text(text)
    page.wait_for_timeout(200)
    assert page.locator("img, #copy script, #list script").count() == 0


def test_long_and_right_to_left_names_stay_inside(server, visit):
    page = visit(server, **PHONE)
    page.fill("#text", "endless lengthy verbose parchment scroll")
    page.select_option("#count", "10")
    expect(page.locator("#list li")).to_have_count(len(LABELS))
    hebrew = page.locator(".name", has_text="ספרים")
    assert hebrew.evaluate("e => getComputedStyle(e).direction") == "rtl"
    name = page.locator(".name", has_text="a very long name").bounding_box()
    assert name["height"] < 100
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_a_lost_server_is_reported_and_retried(text_files, visit):
    with serving(text_files, text_files / "calibrated") as server:
        page = visit(server, failures=["net::ERR_"])  # which one depends on when it is lost
        page.fill("#text", TEXT)
        expect(first_label(page)).to_have_text("fruit")
    page.fill("#text", TEXT + " More.")
    expect(page.locator("#notice")).to_contain_text("does not respond")
    expect(page.locator("#list")).to_be_hidden()
    expect(page.locator("#text")).to_have_value(TEXT + " More.")
    page.click("#retry")
    expect(page.locator("#notice")).to_be_visible()
    with serving(text_files, text_files / "plain", "--port", str(server.port)):
        page.click("#retry")
        expect(first_label(page)).to_have_text("fruit")
        expect(page.locator("#notice")).to_be_hidden()
        expect(page.locator("#scale")).to_contain_text(
            "not probabilities"
        )  # the model served now has no probabilities


def test_token_is_requested_and_kept_for_the_tab(text_files, visit):
    with serving(text_files, text_files / "calibrated", token="ein geheimer Schlüssel") as server:
        page = visit(server, failures=["401"])
        expect(page.locator("#token")).to_be_focused()
        page.fill("#text", TEXT)
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#access-reason")).to_contain_text("rejected")
        page.fill("#token", "ein geheimer Schlüssel")
        page.keyboard.press("Enter")
        expect(first_label(page)).to_have_text("fruit")
        expect(marked(page).first).to_have_text("apple")
        expect(page.locator("#access")).to_be_hidden()
        page.reload()
        expect(page.locator("h1")).to_have_text("calibrated")
        assert "geheimer" not in page.content()


def test_text_beyond_the_limit_is_reported_with_the_limit(text_files, visit):
    with serving(text_files, text_files / "calibrated", "--max-body", "1") as server:
        page = visit(server, failures=["413"])
        expect(page.locator("h1")).to_have_text("calibrated")
        paste(page, "apple " * 200_000)
        expect(page.locator("#notice")).to_contain_text("1 MB")
        page.click("#clear")
        expect(page.locator("#notice")).to_be_hidden()
        page.fill("#text", TEXT)
        expect(first_label(page)).to_have_text("fruit")
        expect(page.locator("#notice")).to_be_hidden()


def test_number_of_labels_keeps_to_the_limit(text_files, visit):
    with serving(text_files, text_files / "calibrated", "--max-k", "3") as server:
        page = visit(server)
        expect(page.locator("#count")).to_have_text("3 labels")
        page.fill("#text", TEXT)
        expect(page.locator("#list li")).to_have_count(3)


def held_requests(page):
    """Return the list of requests for labels, which are held until continued."""
    held = []
    page.route("**/predict", lambda route: held.append(route))
    return held


def wait_for(page, holds):
    for _ in range(500):
        if holds():
            return
        page.wait_for_timeout(20)
    raise AssertionError("it never came")


def test_progress_is_shown_only_if_an_answer_takes_long(server, visit):
    page = visit(server)
    expect(page.locator("#example")).to_be_visible()
    held = held_requests(page)
    page.clock.install()
    page.clock.pause_at(page.evaluate("Date.now()") + 1000)
    page.fill("#text", TEXT)
    page.click("button.main")
    page.clock.run_for(140)
    expect(page.locator("#busy")).to_be_hidden()
    page.clock.run_for(20)
    expect(page.locator("#busy")).to_be_visible()
    held[0].continue_()
    expect(first_label(page)).to_have_text("fruit")
    expect(page.locator("#busy")).to_be_hidden()


def test_further_typing_replaces_a_pending_request(server, visit):
    page = visit(server)
    expect(page.locator("#example")).to_be_visible()
    held = held_requests(page)
    ended = []
    page.on("requestfailed", lambda request: ended.append(request.post_data))
    page.fill("#text", "apple banana pear")
    page.click("button.main")
    wait_for(page, lambda: held)
    page.fill("#text", "harbour vessel cargo")
    page.click("button.main")
    wait_for(page, lambda: any("harbour" in route.request.post_data for route in held))
    wait_for(page, lambda: any("apple" in text for text in ended))
    for route in held:  # one each, or two if the browser was slow to click
        if "harbour" in route.request.post_data:
            route.continue_()
    expect(first_label(page)).to_have_text("ships")
    assert sum("apple" in text for text in ended) == sum(
        "apple" in route.request.post_data for route in held
    )


def test_labels_are_found_while_typing(server, visit):
    page = visit(server)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#text").press_sequentially("harbour vessel", delay=5)
    expect(first_label(page)).to_have_text("ships")
    assert sum(url.endswith("/predict") for url in asked) < 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough_in_both_schemes(server, visit, scheme):
    page = visit(server, color_scheme=scheme, reduced_motion="reduce")
    page.fill("#text", TEXT)
    expect(marked(page, "for").first).to_be_visible()
    page.evaluate("askForToken(); showNotice('Something happened.', findLabels)")
    ratio, text = page.evaluate(CONTRAST)
    assert ratio >= 4.5, text
    red, green, blue = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert (max(red, green, blue) < 60) == (scheme == "dark")


def test_nothing_moves_if_reduced_motion_is_preferred(server, visit):
    page = visit(server, reduced_motion="reduce")
    page.fill("#text", TEXT)
    style = "e => [getComputedStyle(e)].flatMap(s => [s.transitionDuration, s.animationName])"
    expect(first_label(page)).to_be_visible()
    for part in (".bar i", "#busy", "#list li"):
        assert page.locator(part).first.evaluate(style) == ["0s", "none"]


def amounts(page, column=1):
    """Return the amounts in the rows of the explanation, for one of the labels."""
    cells = page.locator(f"#terms tbody:first-of-type tr td:nth-child({1 + column}) .part span")
    return [float(text.replace("−", "-")) for text in cells.all_inner_texts() if text != "·"]


def want(page, name):
    page.fill("#search", name)
    page.keyboard.press("Enter")


def test_any_label_is_found_by_name_and_explained(server, visit):
    page = visit(server)
    page.fill("#text", TEXT)
    page.select_option("#count", "5")
    expect(page.locator("#list li")).to_have_count(5)
    shown = page.locator("#list .name").all_inner_texts()
    (missing,) = set(LABELS) - {name for name in LABELS if name.strip() in shown}
    want(page, missing.strip()[:20].upper())
    wanted = page.locator("#list li.wanted")
    expect(wanted.locator(".place")).to_have_text("6.")
    expect(wanted).to_have_attribute("aria-selected", "true")
    expect(wanted.locator(".amount")).to_contain_text("%")
    expect(page.locator("#why h2")).to_contain_text("Why not")
    expect(page.locator("#verdict")).to_contain_text("Rank 6 of 6")
    expect(page.locator("#verdict")).to_contain_text("not assigned")
    assert any(amount < 0 for amount in amounts(page))
    page.fill("#text", TEXT + " And more.")  # the label stays in the list for the next text
    expect(wanted.locator(".place")).to_have_text("6.")
    page.click("#unwant")
    expect(page.locator("#list li")).to_have_count(5)


def test_labels_are_narrowed_by_a_prefix_or_a_list(server, visit):
    page = visit(server, failures=["400"])
    page.fill("#text", TEXT)
    expect(page.locator("#list li")).to_have_count(5)
    page.click("#filters > summary")
    page.fill("#prefix", "sHi")
    expect(page.locator("#list .name")).to_have_text(["ships"])
    expect(page.locator("#filters-state")).to_have_text(
        "Restricted to labels that start with “sHi”."
    )
    page.fill("#prefix", "no label begins so")
    expect(page.locator("#nothing")).to_have_text("No label matches the restrictions.")
    page.fill("#prefix", "")
    page.fill("#group", "party 🎉\n\n fruit \nfruit")
    page.locator("#group").blur()
    expect(page.locator("#list .name")).to_have_text(["fruit", "party 🎉"])
    expect(page.locator("#filters-state")).to_contain_text("2 labels of your list")
    page.click("#filters > summary")
    expect(page.locator("#filters-state")).to_be_visible()  # even while the fields are folded
    page.click("#filters > summary")
    page.fill("#group", "fruit\nnobody")
    page.locator("#group").blur()
    expect(page.locator("#notice")).to_contain_text("no label 'nobody'")
    page.fill("#group", "")
    page.locator("#group").blur()
    expect(page.locator("#list li")).to_have_count(5)
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#filters-state")).to_be_hidden()


def test_search_is_a_combobox_that_says_when_nothing_is_found(server, visit):
    page = visit(server)
    page.fill("#search", "zzz")
    expect(page.locator("#matches")).to_contain_text("No label")
    page.fill("#search", "S")
    expect(page.locator("#matches li").first).to_contain_text("ships")  # it starts with the query
    expect(page.locator("#search")).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#search")).to_have_attribute("aria-activedescendant", "match-1")
    page.keyboard.press("Escape")
    expect(page.locator("#matches")).to_be_hidden()
    expect(page.locator("#search")).to_have_attribute("aria-expanded", "false")
    want(page, "ships")
    expect(page.locator("#nothing")).to_contain_text("Type a text to see the rank of ships")
    page.fill("#text", "apple banana")
    expect(page.locator("#list li", has_text="ships")).to_be_visible()


@pytest.mark.parametrize("phone", [True, False])
def test_match_is_taken_by_a_tap_or_a_click(server, visit, phone):
    page = visit(server, **(PHONE if phone else {}))
    page.fill("#text", "apple")
    expect(page.locator("#list li")).to_have_count(5)
    page.fill("#search", "par")
    match = page.locator("#matches li", has_text="party")
    expect(match).to_be_visible()
    match.tap() if phone else match.click()
    expect(page.locator("#why-title")).to_have_text("party 🎉")
    expect(page.locator("#matches")).to_be_hidden()


def test_names_keep_the_white_space_inside_them(tmp_path, visit):
    name = "two  blanks: and\na line"
    rows = [{"text": f"word{i % 3} common", "labels": [[name, "b", "c"][i % 3]]} for i in range(60)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train_text(tmp_path / "texts.jsonl", tmp_path / "model")
    with serving(tmp_path, tmp_path / "model") as server:
        assert server.predict({"text": "word0"})[2]["names"][0] == name
        page = visit(server)
        page.fill("#text", "word0")
        expect(first_label(page)).to_be_visible()
        assert first_label(page).evaluate("e => e.innerText") == name
        want(page, "TWO  blanks")
        assert page.locator("#why-title").evaluate("e => e.textContent") == name


def test_threshold_is_drawn_and_assigned_labels_are_marked(server, visit):
    least = server.ask("GET", "/model")[2]["threshold"]["value"]
    page = visit(server)
    page.fill("#text", TEXT)
    expect(page.locator("#list li")).to_have_count(5)
    drawn = page.evaluate(
        "[...document.querySelectorAll('.bar')].map(bar => "
        "(bar.querySelector('b').getBoundingClientRect().left + 1 - "
        "bar.getBoundingClientRect().left) / bar.getBoundingClientRect().width)"
    )
    assert drawn == pytest.approx([least] * 5, abs=0.01)
    answer = server.predict({"text": TEXT})[2]
    over = [value >= least for value in answer["probabilities"]]
    assert True in over
    assert False in over
    marks = page.evaluate(
        "[...document.querySelectorAll('#list li')].map(li => li.classList.contains('assigned'))"
    )
    assert marks == over
    expect(page.locator("#scale")).to_contain_text(f"{sum(over)} of these 5 labels")


def test_labels_are_compared_side_by_side(server, visit):
    page = visit(server)
    page.fill("#text", TEXT)
    expect(page.locator("#why-title")).to_have_text("fruit")
    page.click("#pin")
    page.locator("#list li", has_text="ships").click()
    expect(page.locator("#terms thead th")).to_have_count(2)
    heads = page.locator("#terms thead th span").all_inner_texts()
    assert heads == ["fruit", "ships"]
    row = page.locator("#terms tbody tr", has_text="harbour")
    fruit, ships = (row.locator(".part span").nth(i).inner_text() for i in (0, 1))
    assert ships.startswith("+")
    assert not fruit.startswith("+")
    page.get_by_role("button", name="Remove fruit from the comparison").click()
    expect(page.locator("#terms thead th")).to_have_count(0)


def test_negative_bars_go_to_the_left_and_the_rest_is_folded(server, visit):
    page = visit(server)
    common = "the and was with some lay seen full day crates "
    page.fill(
        "#text", common + "apple banana pear harbour vessel cargo markup script browser books"
    )
    want(page, "party")
    expect(page.locator("#why-title")).to_contain_text("party")
    zeros = page.evaluate(
        "[...document.querySelectorAll('#terms .part i')].filter(i => i.offsetWidth > 1).map(i => "
        "[i.className, i.getBoundingClientRect().left, i.getBoundingClientRect().right])"
    )
    ends = [right for kind, _, right in zeros if kind == "against"]
    begins = [left for kind, left, _ in zeros if kind == "for"]
    assert max(ends) - min(ends) < 1.5  # all end at the middle line
    assert all(left >= max(ends) - 1 for left in begins)
    fold = page.locator("#fold")
    expect(fold).to_contain_text("small ones")
    expect(page.locator("#small")).to_be_hidden()
    fold.click()
    expect(page.locator("#small tr").first).to_be_visible()
    expect(page.locator("#fold")).to_have_attribute("aria-expanded", "true")


def test_answer_is_copied_as_labels_and_as_curl(server, visit, tmp_path):
    page = visit(server, permissions=["clipboard-read", "clipboard-write"])
    page.fill("#text", "It's an apple")
    expect(page.locator("#list li")).to_have_count(5)
    answer = server.predict({"text": "It's an apple"})[2]
    page.click("#copy-labels")
    expect(page.locator("#copy-labels")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "\n".join(answer["names"]) + "\n"
    page.click("#copy-curl")
    expect(page.locator("#copy-curl")).to_have_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()")
    assert "DISMEC_TOKEN" not in command
    page.evaluate(  # as without https
        "() => { navigator.clipboard.writeText = () => Promise.reject(); }"
    )
    expect(page.locator("#copy-labels")).to_have_text("Copy labels")
    page.click("#copy-labels")
    expect(page.locator("#copy-labels")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == copied
    if shutil.which("curl"):
        out = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        assert json.loads(out.stdout) == answer


def saved_csv(page, tmp_path):
    with page.expect_download() as download:
        page.click("#batch-save")
    download.value.save_as(tmp_path / "saved.csv")
    with (tmp_path / "saved.csv").open(encoding="utf-8-sig", newline="") as file:
        return download.value.suggested_filename, list(csv.DictReader(file))


FILES = {
    "tickets.csv": 'id,text\r\na-1,"One apple, ""ripe"""\r\na-2,"a vessel\nand cargo"\r\n',
    "tickets.tsv": 'id\ttext\na-1\tOne apple, "ripe"\na-2\t"a vessel\nand cargo"\n',
    "semicolons.csv": 'id;text\na-1;"One apple, ""ripe"""\na-2;"a vessel\nand cargo"',
    "tickets.jsonl": '{"id": "a-1", "text": "One apple, \\"ripe\\""}\n\n'
    '{"id": "a-2", "text": "a vessel\\nand cargo"}\n',
    "tickets.json": '[{"id": "a-1", "text": "One apple, \\"ripe\\""},'
    '{"id": "a-2", "text": "a vessel\\nand cargo"}]',
}


@pytest.mark.parametrize("name", FILES)
def test_file_of_texts_comes_back_as_csv(server, visit, tmp_path, name):
    (tmp_path / name).write_text("\ufeff" + FILES[name], newline="")
    texts = ['One apple, "ripe"', "a vessel\nand cargo"]
    page = visit(server)
    page.set_input_files("#file", tmp_path / name)
    expect(page.locator("#batch-go")).to_have_text("Find labels for 2 texts")
    for column in ("id", "text"):
        page.select_option("#id-column", {"id": "id", "text": "no column"}[column])
        page.click("#batch-go")
        expect(page.locator("#batch-state")).to_have_text("2 texts done.")
        file, rows = saved_csv(page, tmp_path)
        assert file == name.partition(".")[0] + "-labels.csv"
        assert [row[column] for row in rows] == (["a-1", "a-2"] if column == "id" else texts)
    for row, text in zip(rows, texts, strict=True):
        answer = server.predict({"text": text})[2]
        assert json.loads(row["labels"]) == answer["names"]
        assert json.loads(row["probabilities"]) == answer["probabilities"]


def test_files_are_restricted_to_the_same_labels_as_the_text(server, visit, tmp_path):
    page = visit(server)
    page.fill("#text", "apple\nvessel")
    page.click("#filters > summary")
    page.fill("#prefix", "ships")
    page.click("#batch-panel > summary")
    page.click("#lines")
    page.click("#batch-go")
    expect(page.locator("#batch-table tbody tr")).to_have_count(2)
    for row in page.locator("#batch-table tbody tr").all():
        expect(row).to_contain_text("ships")
        expect(row).not_to_contain_text("fruit")


def test_lines_of_the_field_are_texts_and_only_assigned_labels_are_given(server, visit, tmp_path):
    page = visit(server)
    page.fill("#text", "apple banana pear\n\nharbour vessel cargo\nXyzzy")
    page.click("#batch-panel summary")
    page.click("#lines")
    expect(page.locator("#batch-go")).to_have_text("Find labels for 3 texts")
    page.select_option("#batch-kind", "assigned")
    page.click("#batch-go")
    expect(page.locator("#batch-table tbody tr")).to_have_count(3)
    _, rows = saved_csv(page, tmp_path)
    assert [json.loads(row["labels"]) for row in rows] == [["fruit"], ["ships"], []]
    expect(page.locator("#batch-table tbody tr").last).to_contain_text("none")
    page.locator("#batch-table button", has_text="harbour").click()
    expect(page.locator("#text")).to_have_value("harbour vessel cargo")
    expect(first_label(page)).to_have_text("ships")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"__label__fruit one apple\n__label__x\n", "fastText lines"),
        (gzip.compress(b"one apple\none pear\n", mtime=0), "one text per line"),
    ],
)
def test_fasttext_and_gzipped_lines_are_read(server, visit, tmp_path, content, kind):
    (tmp_path / "lines.txt").write_bytes(content)
    page = visit(server)
    page.set_input_files("#file", tmp_path / "lines.txt")
    expect(page.locator("#batch-what")).to_have_text(f"lines.txt: {kind}, 2 texts")
    expect(page.locator("#batch-first")).to_have_text("First text: one apple")


def test_a_dropped_file_is_accepted(server, visit):
    page = visit(server)
    page.evaluate(
        "() => { const given = new DataTransfer();"
        " given.items.add(new File(['one apple\\none pear\\n'], 'fruit.txt'));"
        " document.body.dispatchEvent(new DragEvent('drop',"
        " {bubbles: true, cancelable: true, dataTransfer: given})); }"
    )
    expect(page.locator("#batch-what")).to_have_text("fruit.txt: one text per line, 2 texts")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", b"id,text\n1,one,two\n", "a.csv:2: 3 columns, but the header has 2."),
        ("a.csv", b'id,text\n1,"one\n', "a.csv:2: missing closing quotation mark."),
        ("a.jsonl", b'{"text": "one"}\n{"text":\n', "a.jsonl:2: not valid JSON."),
        ("a.json", b"[1]", "a.json:1: expected an object or a text."),
        ("a.txt", b"caf\xe9\n", "a.txt is not a UTF-8 text file: save it as UTF-8."),
        ("a.txt", b"\n", "a.txt: no texts."),
    ],
)
def test_file_that_cannot_be_read_is_refused_with_its_line(
    server, visit, tmp_path, name, content, reason
):
    (tmp_path / name).write_bytes(content)
    page = visit(server)
    page.set_input_files("#file", tmp_path / name)
    expect(page.locator("#batch-state")).to_have_text(re.compile(re.escape(reason), re.IGNORECASE))
    expect(page.locator("#batch")).to_be_hidden()


def test_text_that_is_a_number_is_refused_before_anything_is_sent(server, visit, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": 2}\n')
    page = visit(server)
    page.set_input_files("#file", tmp_path / "a.jsonl")
    page.click("#batch-go")
    expect(page.locator("#batch-state")).to_contain_text('A.jsonl:2: "text" is not a text.')
    expect(page.locator("#batch-save")).to_be_hidden()


def test_file_beyond_the_limit_goes_in_several_requests(text_files, visit, tmp_path):
    (tmp_path / "many.txt").write_text("apple pear\n" * 25)
    with serving(text_files, text_files / "calibrated", "--max-rows", "10") as server:
        page = visit(server)
        sent = []
        page.on("request", lambda r: r.post_data and sent.append(len(r.post_data_json["rows"])))
        page.set_input_files("#file", tmp_path / "many.txt")
        page.click("#batch-go")
        expect(page.locator("#batch-state")).to_have_text("25 texts done.")
        assert sent == [10, 10, 5]
        assert len(saved_csv(page, tmp_path)[1]) == 25


def test_finished_rows_stay_when_the_rest_is_canceled(server, visit, tmp_path):
    (tmp_path / "many.txt").write_text("apple pear\n" * 250)
    page = visit(server)
    expect(page.locator("#example")).to_be_visible()
    held = held_requests(page)
    page.set_input_files("#file", tmp_path / "many.txt")
    page.click("#batch-go")
    wait_for(page, lambda: len(held) == 1)
    held[0].continue_()
    wait_for(page, lambda: len(held) == 2)
    expect(page.locator("#batch-state")).to_have_text("100 of 250 texts")
    assert page.locator("#batch-progress").evaluate("e => e.value") == 100
    page.click("#batch-stop")
    expect(page.locator("#batch-state")).to_have_text("Canceled. 100 of 250 texts have labels.")
    assert len(saved_csv(page, tmp_path)[1]) == 100
    expect(page.locator("#batch-go")).to_be_visible()


def test_print_shows_the_answer_without_controls(server, visit):
    page = visit(server, color_scheme="dark")
    page.fill("#text", TEXT)
    expect(marked(page).first).to_be_visible()
    page.emulate_media(media="print", color_scheme="dark")
    for part in ("#list", "#why", "#terms"):
        expect(page.locator(part)).to_be_visible()
    for part in ("#text", "#search", "#copy-curl"):
        expect(page.locator(part)).to_be_hidden()
    colors = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert colors == ["rgb(31, 35, 40)", "rgb(255, 255, 255)"]


def test_api_docs_send_their_examples(server, visit):
    page = visit(server)
    page.goto(page.url + "docs")
    expect(page.locator("#predict h2")).to_have_text("POST/predict")
    body = page.locator("#predict textarea")
    expect(body).not_to_have_value(re.compile("What is this about"))  # a text from the model
    for path, said in (("predict", '"probabilities"'), ("explain", '"rank"'), ("labels", '"more"')):
        page.locator(f"#{path} button").click()
        expect(page.locator(f"#{path} pre")).to_contain_text(said)
        expect(page.locator(f"#{path} .state")).to_contain_text("200 OK")
    page.select_option("#predict select", "Many rows")
    page.locator("#predict button").click()
    expect(page.locator("#predict pre")).to_contain_text('"rows"')
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_api_docs_request_the_token(text_files, visit):
    with serving(text_files, text_files / "calibrated", token="secret") as server:
        page = visit(server, failures=["401"])
        page.goto(page.url + "docs")
        page.locator("#model button").click()
        expect(page.locator("#model .state")).to_contain_text("401")
        page.fill("#token", "secret")
        page.locator("#model button").click()
        expect(page.locator("#model .state")).to_contain_text("200")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_api_docs_have_enough_contrast(server, visit, scheme):
    page = visit(server, color_scheme=scheme)
    page.goto(page.url + "docs")
    page.locator("#predict button").click()
    expect(page.locator("#predict pre")).to_be_visible()
    ratio, text = page.evaluate(CONTRAST)
    assert ratio >= 4.5, text


def test_page_fits_a_phone(server, visit):
    page = visit(server, **PHONE)
    page.fill("#text", TEXT + " " + "x" * 500)
    expect(marked(page).first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    for button in page.locator("button:visible, select:visible, #list li").all():
        assert button.bounding_box()["height"] >= 40  # a finger's width
