"""Pages of real servers in a real browser: fixtures that open them, and shared helpers."""

from __future__ import annotations

import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=20_000)  # generous, for busy machines

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}

# The lowest contrast ratio of any visible text, with that text.
CONTRAST = """() => {
  const parse = color => {
    const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3]));
  const ground = element => {
    const own = parse(getComputedStyle(element).backgroundColor);
    if (own[3] === 1) return own;
    const under = element.parentElement ? ground(element.parentElement) : [255, 255, 255];
    return over(own, under);
  };
  const light = color => {
    const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = color.map(c => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (element, part) => {
    const ink = light(parse(getComputedStyle(element, part).color));
    const paper = light(ground(element));
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  };
  const hasText = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  const found = [...document.querySelectorAll("body *")]
    .filter(e => hasText(e) && e.checkVisibility() && !e.closest(".unseen"))
    .map(e => [contrast(e), e.textContent]);
  for (const field of document.querySelectorAll("[placeholder]"))
    found.push([contrast(field, "::placeholder"), "placeholder"]);
  return found.sort((a, b) => a[0] - b[0])[0];
}"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def visit(browser):
    """Return a function that opens a server's page; checks at the end that no page had errors."""
    pages = []

    def opened(server, *, failures=(), script="", **options):
        context = browser.new_context(**options)
        page = context.new_page()
        page.set_default_timeout(20_000)
        origin = f"http://127.0.0.1:{server.port}/"
        page.troubles = []
        note = page.troubles.append

        def heard(message):
            expected = any(failure in message.text for failure in failures)
            if message.type in ("error", "warning") and not expected:
                note(message.text)

        page.on("console", heard)
        page.on("pageerror", lambda error: note(str(error)))
        page.on("dialog", lambda dialog: (note(dialog.message), dialog.dismiss()))
        page.on("request", lambda r: r.url.startswith((origin, "data:")) or note(r.url))
        page.add_init_script(
            "window.violations = [];"
            "addEventListener('securitypolicyviolation', e => violations.push(e.blockedURI));"
            + script
        )
        page.goto(origin)
        pages.append(page)
        return page

    yield opened
    for page in pages:
        assert page.troubles == [], page.troubles
        assert page.evaluate("violations") == []
        page.context.close()
