"""The page of a small compare in a browser: from disk, without network, with the keyboard."""

from __future__ import annotations

import shutil

import pytest

from rightreasons.config import resolve
from rightreasons.reports.write import report
from rightreasons.sweep import execute

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install 'rightreasons[browser]'"
)
pytest.importorskip("altair", reason="altair is not installed: pip install 'rightreasons[report]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
TINY = [
    *("stream.tasks=3", "stream.classes=6", "data.train=8", "data.test=4"),
    *("train.epochs=1", "train.batch=8", "memory.size=12"),
]
READY = "!document.querySelector('.chart:not([data-ready])')"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """er and er+rrr, two seeds each, really trained."""
    base = tmp_path_factory.mktemp("browser")
    for method in ("er", "er+rrr"):
        for seed in (0, 1):
            config = resolve("glyphs-small", method, TINY, seed)
            execute(config, base / "runs" / method / str(seed))
    return report(base / "runs", base / "report.html")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


PATIENCE = 300_000  # milliseconds, for what takes a few


class Tab:
    """A tab that notes what is asked of the network and what the console says."""

    def __init__(self, browser, page_file, width=1280, height=900, scheme="light"):
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
        )
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.asked, self.said = [], []
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.on("console", lambda m: self.said.append(m.text))
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.goto(page_file.as_uri())
        self.page.wait_for_function(READY)
        self.page.wait_for_selector(".evolution[data-drawn]")

    def canvas(self):
        return self.page.evaluate("document.querySelector('.card canvas').toDataURL()")

    def drawn(self, value):
        self.page.wait_for_selector(f".evolution[data-drawn='{value}']")


@pytest.fixture
def tab(browser, page_file):
    made = Tab(browser, page_file)
    yield made
    made.context.close()


def test_it_opens_from_disk_without_network_and_without_a_word(tab, page_file):
    assert [url for url in tab.asked if not url.startswith("data:")] == [page_file.as_uri()]
    assert tab.said == []


def test_the_slider_changes_the_picture(tab):
    tab.page.select_option(".which-image", "0")  # of task 1: three tasks to look at
    tab.drawn("0/answer/3")
    pictures = set()
    for k in (3, 2, 1):
        tab.page.fill(".which-task", str(k))
        tab.drawn(f"0/answer/{k}")
        pictures.add(tab.canvas())
        assert f"after task {k}" in tab.page.inner_text(".card.method h4")
        assert tab.page.inner_text(".slider output") == f"{k} of 3"
    assert len(pictures) == 3
    tab.page.select_option(".which-map", "label")
    tab.drawn("0/label/1")


def test_the_chooser_changes_the_image_and_the_strip_the_task(tab):
    assert tab.page.input_value(".which-image") == "2"  # the first of task 2
    before = tab.canvas()
    tab.page.select_option(".which-image", "1")
    tab.drawn("1/answer/3")
    assert tab.canvas() != before
    tab.page.click(".strip button >> nth=0")
    tab.drawn("1/answer/1")
    said = tab.page.inner_text(".card.method >> nth=0")
    assert ("correct" in said) and "predicts" in said and ("a hit" in said or "a miss" in said)


def test_the_method_switch_changes_the_curve(tab):
    def marks():
        return tab.page.evaluate(
            "[...document.querySelectorAll('#g1-accuracy .mark-symbol path, #g1-accuracy .mark-line path')].length"  # noqa: E501
        )

    both = marks()
    tab.page.uncheck("fieldset.methods input[value='er+rrr']")
    tab.page.wait_for_function(
        f"document.querySelectorAll('#g1-accuracy .mark-symbol path, #g1-accuracy .mark-line path').length < {both}"  # noqa: E501
    )
    assert marks() == both // 2
    before = tab.page.inner_html("#g1-accuracy svg")
    tab.page.select_option("select.measure >> nth=0", "pointing")
    tab.page.wait_for_function(
        "before => document.querySelector('#g1-accuracy svg').innerHTML != before", arg=before
    )
    assert tab.said == []


def test_what_is_below_the_window_is_drawn_when_it_comes_near_with_the_choices_made_before(
    browser, page_file
):
    context = browser.new_context(viewport={"width": 1280, "height": 500}, offline=True)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.add_init_script("window.requestIdleCallback = () => 0")  # a browser that is never idle
    page.goto(page_file.as_uri())
    page.wait_for_load_state()
    assert not page.query_selector("#g1-drift[data-ready]")
    assert not page.query_selector(".evolution[data-drawn]")
    page.select_option("select.measure[data-chart='g1-drift']", "iou")
    page.uncheck("fieldset.methods input[value='er+rrr']")
    page.wait_for_selector("#g1-accuracy[data-ready]")
    page.eval_on_selector("#g1-drift", "node => node.scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector("#g1-drift[data-ready]")
    drawn = page.locator("#g1-drift .mark-line path")
    assert drawn.count() == 3  # two seeds and their mean, of one method
    chosen = drawn.first.get_attribute("d")
    page.select_option("select.measure[data-chart='g1-drift']", "cosine")
    page.wait_for_function(
        "before => document.querySelector('#g1-drift .mark-line path').getAttribute('d') != before",
        arg=chosen,
    )
    page.emulate_media(media="print")
    told = page.locator(".chart-block:has(#g1-drift) .drawn")
    assert told.is_visible() and told.inner_text() == "maps of old images: cosine, %"
    context.close()


def test_a_chart_says_what_it_shows_to_those_who_do_not_see_it(tab):
    """Vega would call each "Vega visualization"."""
    chart = tab.page.locator("#g1-accuracy")
    assert chart.get_attribute("role") == "img" and "er from " in chart.get_attribute("aria-label")
    before = chart.get_attribute("aria-label")
    tab.page.select_option("select.measure[data-chart='g1-accuracy']", "pointing")
    after = chart.get_attribute("aria-label")
    assert after != before and after.startswith("peak on the object")


def test_the_strip_keeps_the_focus_of_the_keyboard(tab):
    button = tab.page.locator(".strip button >> nth=1")
    button.focus()
    tab.page.keyboard.press("Enter")
    tab.drawn("2/answer/3")
    word = "document.activeElement.getAttribute('aria-label')"
    assert tab.page.evaluate(word) == "show task 3"


def test_the_matrix_follows_its_lists(tab):
    before = tab.page.inner_text(".heat")
    tab.page.select_option(".which-run", "3")
    assert (
        "er+rrr, seed 1" in tab.page.inner_text(".heat") and tab.page.inner_text(".heat") != before
    )
    tab.page.select_option(".which-matrix", "pointing")
    assert "peak on the object" in tab.page.inner_text(".heat caption")


def test_a_row_leads_to_config_and_command(tab):
    tab.page.click("table a:has-text('er+rrr, seed 1') >> visible=true")
    # the browser tells of a new address after the click has returned
    tab.page.wait_for_selector("details[open] pre.command:has-text('er+rrr') >> visible=true")
    assert "seed=1" in tab.page.inner_text("details[open] pre.command >> visible=true")


def test_the_keyboard_alone_is_enough(tab):
    """Tab from the top to the boxes, the slider and a row; arrows and space do the rest."""
    page = tab.page
    seen = []
    for _ in range(80):
        page.keyboard.press("Tab")
        now = page.evaluate(
            "(({className, type, value}) => [className, type, value])(document.activeElement)"
        )
        seen.append(now)
        if now[1] == "checkbox" and now[2] == "er":
            page.keyboard.press("Space")
            assert not page.is_checked("fieldset.methods input[value='er']")
        if "which-task" in now[0]:
            page.keyboard.press("ArrowLeft")
            tab.drawn("2/answer/2")
            break
    else:
        raise AssertionError(f"the slider was not reached: {seen}")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_overflows(browser, page_file, scheme):
    tab = Tab(browser, page_file, 390, 844, scheme)
    tab.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    wide = tab.page.evaluate(
        """() => [...document.body.querySelectorAll('*')].filter(e =>
            e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll')
            && !e.closest('.skip') && e.getClientRects().length)
            .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert wide == []
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.context.close()


def test_light_and_dark_are_readable(browser, page_file):
    """The contrast of ink on paper, by the formula of WCAG."""
    for scheme in ("light", "dark"):
        tab = Tab(browser, page_file, scheme=scheme)
        colours = tab.page.evaluate(
            """() => ['body', 'caption', 'a', '.right, .wrong', '#g1-accuracy svg text'].map(s => {
                const style = getComputedStyle(document.querySelector(s));
                return s.includes('svg') ? style.fill : style.color; })"""
        )
        paper = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        for colour in colours:
            assert contrast(colour, paper) >= 4.5, (scheme, colour, paper)
        tab.context.close()


def contrast(one, other):
    def luminance(text):
        parts = [int(v) / 255 for v in text[4:-1].split(",")]
        lin = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_printed_it_is_black_on_white_without_controls(browser, page_file):
    tab = Tab(browser, page_file, scheme="dark")
    tab.page.emulate_media(media="print")
    assert tab.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert not tab.page.is_visible(".controls") and not tab.page.is_visible("nav")
    assert tab.page.is_visible(".heat table") and tab.page.is_visible("#g1-accuracy svg")
    tab.context.close()
