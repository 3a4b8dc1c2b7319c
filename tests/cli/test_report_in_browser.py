"""The report in a browser: asks for nothing, is readable in the dark and when narrow, prints every row, leads about."""

import io
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from browser import Browser
from PIL import Image
from report_sections import edge, long_section

from megengine.cli.report import render

pytestmark = pytest.mark.slow
ROWS = 55
CONTRASTS = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = parts(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("h1, h2, h3, p, td, th, dt, dd, summary, .chart text")].map((e) => {
    const style = getComputedStyle(e), ink = parts(e.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  });
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render("a network", [long_section(ROWS)], recipe={"weights": "int8"}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


def open_graph(browser):
    browser.ask("document.querySelector('details.network').open = true")
    browser.ask("document.querySelector('iframe').scrollIntoView(); new Promise((done) => setTimeout(done, 1000))")


def test_no_request_leaves_the_page_and_no_script_complains(browser, page):
    browser.requests.clear()
    browser.open(page)
    open_graph(browser)
    assert set(browser.requests) <= {page.as_uri(), "about:srcdoc"} and browser.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in(scheme, browser, page):
    browser.open(page, scheme=scheme)
    found = browser.ask(CONTRASTS)
    assert len(found) > 12 * ROWS and min(found) > 4.4


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_graph_takes_the_colours_of_the_page_in(scheme, dark, browser, page):
    browser.open(page, scheme=scheme)
    open_graph(browser)
    at = browser.ask("JSON.parse(JSON.stringify(document.querySelector('iframe').getBoundingClientRect()))")
    whole = np.asarray(Image.open(io.BytesIO(browser.picture())).convert("L"))
    shown = whole[max(0, int(at["top"])) : int(at["bottom"]), int(at["left"]) : int(at["right"])]
    assert shown.size > 100_000 and (np.median(shown) < 80) == dark
    assert len(np.unique(shown)) > 30  # boxes and text are there


@pytest.mark.parametrize("width", [400, 800, 1010, 1280, 1600])
def test_no_column_is_cut_at_the_width_of(width, browser, page):
    browser.open(page, width=width)
    inside, outside = "s.scrollWidth - s.clientWidth", "document.documentElement.scrollWidth - innerWidth"
    assert browser.ask(
        f"(() => {{ const s = document.querySelector('.scroll'); return [{inside}, {outside}]; }})()"
    ) == [0, 0]
    assert browser.ask("document.querySelector('.edges tbody tr td:nth-child(6)').dataset.label") == "SQNR dB"


def test_the_label_below_the_chart_is_seen_in_a_narrow_window(browser, page):
    browser.open(page, width=420)
    part = "[...document.querySelectorAll('.chart text')].find((one) => one.textContent.startsWith('edge, in'))"
    left, right = browser.ask(f"(({{ left, right }}) => [left, right])({part}.getBoundingClientRect())")
    assert 0 <= left < right <= browser.ask("document.querySelector('.chart').getBoundingClientRect().right")


def test_every_row_is_printed(browser, page, tmp_path):
    browser.open(page, scheme="dark")
    (tmp_path / "report.pdf").write_bytes(browser.printed())
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext here")
    words = ["pdftotext", "-layout", tmp_path / "report.pdf", "-"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in text.splitlines() if line.startswith("edge_")]
    assert names == [f"edge_{i}" for i in range(ROWS)]
    assert [text.count(value) for value in ("conv2d", "0.90000", "-1 … 2")] == [ROWS] * 3  # the whole width of each


def test_all_that_was_found_is_printed(browser, tmp_path):
    """The notes behind a fold are open on paper, and closed again behind it."""
    path = tmp_path / "report.html"
    section = replace(long_section(3), notes=[("note", f"finding {i}") for i in range(11)], plan="step 1")
    path.write_text(render("a network", [section], recipe={}), encoding="utf-8")
    browser.open(path)
    shown = "[...document.querySelectorAll('.notes li')].map((e) => e.checkVisibility())"
    assert browser.ask(shown) == [True] * 8 + [False] * 3
    browser.ask(f"addEventListener('beforeprint', () => {{ window.onPaper = {shown}; }})")
    browser.printed()
    assert browser.ask("window.onPaper") == [True] * 11 and browser.ask(shown) == [True] * 8 + [False] * 3


def test_a_dot_leads_to_its_row_though_the_field_hides_it(browser, page):
    browser.open(page)
    browser.ask("(() => { const f = document.querySelector('.filter'); f.value = 'edge_3'; f.oninput(); })()")
    assert browser.ask("document.querySelectorAll('.edges tbody tr:not([hidden])').length") == 11
    browser.ask("document.querySelectorAll('.chart a')[50].dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    row = "document.querySelector('tr:target')"
    assert browser.ask(f"[{row}.cells[0].textContent, {row}.offsetHeight > 0]") == ["edge_50m", True]
    assert browser.complaints == []


def test_the_names_of_edges_stay_text(browser, tmp_path):
    hostile = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    section = long_section(3, name=hostile, layers=[edge(hostile), edge("b")])
    (tmp_path / "page.html").write_text(render("a", [section], recipe={hostile: hostile}), encoding="utf-8")
    browser.open(tmp_path / "page.html")
    open_graph(browser)
    assert browser.ask("[document.title, document.querySelectorAll('img').length]") == ["a", 0]


def test_a_row_shows_its_box_and_a_box_marks_its_row(browser, page):
    browser.open(page)
    browser.ask("document.querySelectorAll('.edges tbody tr')[40].click()")
    browser.ask("new Promise((done) => setTimeout(done, 1500))")
    assert browser.ask("document.querySelector('details.network').open") is True
    assert browser.ask("document.querySelector('tr.picked').cells[0].textContent") == "edge_40m"
    # the frame says which box was chosen, as after a click on it
    browser.ask("window.chosen = []; window.addEventListener('message', (e) => window.chosen.push(e.data.chosen)); 0")
    frame = "document.querySelector('iframe').contentWindow"
    browser.ask(f"{frame}.postMessage({{show: 'edge_7'}}, '*'); new Promise((done) => setTimeout(done, 700))")
    assert browser.ask("window.chosen.at(-1)") == "edge_7"
    assert browser.ask("document.querySelector('tr.picked').cells[0].textContent") == "edge_7m"
    assert browser.complaints == []
