from html.parser import HTMLParser

import pytest
from rich.progress import Progress

from hebe.report.html import page
from hebe_lab.runner import run_study
from hebe_lab.study import StudyOptions


class Parsed(HTMLParser):
    """Elements in order, and the text of each table cell, heading and paragraph."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.texts, self._within = [], {}, []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._within.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        if tag in self._within:
            while self._within.pop() != tag:
                pass

    def handle_data(self, data):
        if self._within:
            self.texts[self._within[-1]][-1] += data


@pytest.fixture
def html(queueing):  # noqa: ARG001
    run = run_study("queueing", StudyOptions(quick=True), Progress(disable=True))
    return page(run.document)


def test_it_reads_in_the_order_of_the_content(html):
    places = [
        html.index(part) for part in ("Queries come as", "Waiting by load", "Mean wait.", "A heat map", "Figures")
    ]
    assert places == sorted(places)
    parsed = Parsed(html)
    assert parsed.texts["h2"] == ["Waiting by load", "A heat map", "Figures", "Run it again"]
    assert "Queries come as a Poisson process & wait for <one> server." in parsed.texts["p"]
    assert parsed.texts["caption"] == ["Mean wait. In service times; the start is empty, so ours is a little low."]
    assert parsed.texts["pre"] == ["hebe study queueing --quick"]


def test_the_papers_number_stands_beside_ours(html):
    parsed = Parsed(html)
    cells = parsed.texts["td"]
    assert cells[:2] == ["30%", "0.4286"]
    low, high = (cells[cells.index(f"queueing.{name}") + 1 :][:6] for name in ("wait.low_load", "ratio.high_load"))
    assert low[1:] == ["0.1 to 1", "services", "", "", "about 0.43"]
    assert high[1:] == ["", "ratio", ">= 0.5", "met", "1"]
    assert "queueing.ratio.high_load: one seed" in parsed.texts["p"]


def test_it_leads_with_the_chosen_figure(html):
    texts = [text.strip() for text in Parsed(html).texts["div"]]
    assert "queueing.\u200bratio.\u200bhigh_\u200bload" in texts
    assert "the paper: 1, target\xa0>=\xa00.5" in texts


def test_it_loads_nothing(html):
    for tag, attributes in Parsed(html).elements:
        assert tag not in ("link", "script", "iframe", "object")
        for name in ("src", "href", "xlink:href", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,")), (tag, name)
    assert "img-src data:" in html, "or the pixels of a rasterised picture stay out"
    assert "a quick run" in html
