"""The page in a real browser, without a display: every tab is driven, at a desktop's width and at a telephone's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.demo.model import DemoModel
from hf_meanmax.demo.page import build_page, launch_settings
from tiny_model import make_model, make_tokenizer

pytest.importorskip("gradio", reason='the demo needs gradio. In a clone: pip install -c constraints.txt ".[demo]"')
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed, so no browser is driven")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path (Debian: apt-get install chromium)"),
]

SCREENSHOTS = os.environ.get("HF_MEANMAX_SCREENSHOTS")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def serve(folder: str) -> Any:
    page = build_page(DemoModel(folder))
    page.queue().launch(**launch_settings(), server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page of a tiny model with a decoder, or of the one that HF_MEANMAX_DEMO_MODEL names."""
    folder = os.environ.get("HF_MEANMAX_DEMO_MODEL")
    if folder is None:
        folder = str(save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("demo") / "model"))
    served = serve(folder)
    yield served
    served.close()


@pytest.fixture(params=[1280, 400], ids=["desktop", "telephone"])
def page(request: pytest.FixtureRequest, browser: Any, site: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    opened.goto(site.local_url)
    yield opened
    context.close()


def screenshot(page: Any, name: str, folder: Path) -> None:
    """Kept where HF_MEANMAX_SCREENSHOTS says; nothing may be wider than the window."""
    folder = Path(SCREENSHOTS) if SCREENSHOTS else folder
    folder.mkdir(parents=True, exist_ok=True)
    width = page.viewport_size["width"]
    page.wait_for_timeout(300)
    page.screenshot(path=folder / f"{name}-{width}.png", full_page=True)
    assert (folder / f"{name}-{width}.png").stat().st_size > 5000
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def open_tab(page: Any, label: str) -> Any:
    """The panel of a tab, which a narrow window keeps in a menu."""
    page.get_by_role("tab").first.wait_for()
    page.wait_for_timeout(500)  # until the tabs that do not fit have gone to the menu
    tab = page.get_by_role("tab", name=label, exact=True)
    if not tab.is_visible():
        page.locator(".overflow-menu > button").click()
        page.locator(".overflow-dropdown").get_by_role("button", name=label).click()
    else:
        tab.click()
    panel = page.locator(f"#{label.lower()}-tab")
    panel.wait_for()
    return panel


def test_similarity(page, tmp_path):
    panel = open_tab(page, "Similarity")
    panel.get_by_role("textbox").fill("the cat sat\nthe <b>dog</b> ran\na red mat")
    panel.get_by_role("button", name="Compare").click()
    cells = panel.locator("table.map td")
    playwright.expect(cells).to_have_count(9)
    assert cells.first.inner_text() == "1.00"
    assert "the <b>dog</b> ran" in panel.locator("table.map").inner_text()
    screenshot(page, "similarity", tmp_path)
    panel.get_by_role("textbox").fill("alone")
    panel.get_by_role("button", name="Compare").click()
    playwright.expect(panel.locator(".message")).to_have_text("Write 2 to 12 texts, one a line; got 1.")
    screenshot(page, "similarity-message", tmp_path)


def test_decode(page, tmp_path):
    panel = open_tab(page, "Decode")
    panel.get_by_label("Text", exact=True).fill("the old man sat by the fire .")
    panel.get_by_role("button", name="Encode and decode").click()
    playwright.expect(panel.locator(".note")).to_contain_text("cosine to the text's own vector 1.000")
    assert panel.locator(".tokens > span").count() > 0
    panel.locator('input[type="number"]').first.fill("1")
    panel.locator('input[type="number"]').first.press("Tab")
    panel.get_by_role("button", name="Encode and decode").click()
    playwright.expect(panel.locator(".note")).not_to_contain_text("own vector 1.000")
    screenshot(page, "decode", tmp_path)


def test_between(page, tmp_path):
    panel = open_tab(page, "Between")
    panel.get_by_label("First text").fill("the old cat sat on the red mat")
    panel.get_by_label("Second text").fill("a dog ran")
    panel.get_by_role("button", name="Decode the path").click()
    playwright.expect(panel.locator("tr")).to_have_count(1 + 7)
    screenshot(page, "between", tmp_path)
    panel.get_by_label("Second text").fill("")
    panel.get_by_role("button", name="Decode the path").click()
    playwright.expect(panel.locator(".message")).to_have_text("The second text is empty; write a sentence.")


def test_search(page, tmp_path):
    panel = open_tab(page, "Search")
    panel.get_by_role("button", name="Search").click()
    playwright.expect(panel.locator(".hm tr")).to_have_count(5)
    playwright.expect(panel.locator(".note").last).to_contain_text("120 sentences encoded in")
    screenshot(page, "search", tmp_path)
    mine, bad, large = (tmp_path / name for name in ("mine.txt", "bad.txt", "large.txt"))
    mine.write_text("the cat sat\na dog ran\n\nthe red mat\n", encoding="utf-8")
    bad.write_bytes(b"caf\xe9 noir")
    large.write_bytes(b"the cat sat\n" * 500_000)
    panel.locator('input[type="file"]').set_input_files(mine)
    playwright.expect(panel.get_by_text("mine")).to_be_visible()
    panel.get_by_label("Query").fill("the cat sat")
    panel.get_by_role("button", name="Search").click()
    playwright.expect(panel.locator(".note").last).to_contain_text("3 sentences encoded in")
    assert panel.locator(".hm tr").all_inner_texts()[0].startswith("1.00")
    panel.get_by_label("Clear").or_(panel.get_by_label("Remove")).first.click()
    panel.locator('input[type="file"]').set_input_files(bad)
    playwright.expect(panel.get_by_text("bad")).to_be_visible()
    panel.get_by_role("button", name="Search").click()
    playwright.expect(panel.locator(".message")).to_have_text("The file is not UTF-8 text (byte 3); save it as UTF-8.")
    panel.get_by_label("Clear").or_(panel.get_by_label("Remove")).first.click()
    panel.locator('input[type="file"]').set_input_files(large)
    playwright.expect(page.get_by_text("exceed")).to_be_visible()


def test_attention(page, tmp_path):
    panel = open_tab(page, "Attention")
    panel.get_by_role("button", name="Show").click()
    playwright.expect(panel.locator("section h4").first).to_be_visible()
    assert panel.locator("section h4").all_inner_texts()[:2] == ["max", "mean"]
    screenshot(page, "attention", tmp_path)


def test_nothing_is_asked_of_another_machine(browser, site):
    """Requests that the page's own policy refuses never leave the browser."""
    asked, refused = [], []
    context = browser.new_context()
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: refused.append((request.url, request.failure)))
    page.goto(site.local_url)
    page.get_by_role("tab", name="Similarity").wait_for()
    page.wait_for_timeout(1000)
    left = {url for url, failure in refused if failure == "csp"}
    outside = [url for url in asked if not url.startswith((site.local_url, "data:", "blob:")) and url not in left]
    assert asked
    assert outside == []
    context.close()


def test_without_a_decoder_two_tabs_say_so(browser, tmp_path):
    model = make_model(encoder_type="none", pooling="weighted_mean", decoder_type="none")
    served = serve(str(save_checkpoint(model, make_tokenizer(), tmp_path / "model")))
    try:
        page = browser.new_page()
        page.goto(served.local_url)
        for label in ("Decode", "Between"):
            playwright.expect(open_tab(page, label).locator(".message")).to_contain_text("has no decoder")
        screenshot(page, "no-decoder", tmp_path)
        panel = open_tab(page, "Attention")
        panel.get_by_role("button", name="Show").click()
        playwright.expect(panel.locator("section h4")).to_have_text(["weighted mean"])
    finally:
        served.close()
