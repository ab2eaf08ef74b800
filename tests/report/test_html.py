import re
from html.parser import HTMLParser

import pytest

from hebe.report.html import KeyNumber, Page
from hebe.report.plots import time_per_stage

EVIL = '<script>alert(1)</script> & "quoted"'


class Elements(HTMLParser):
    """Every element with its attributes, and all text."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def classes(self, tag):
        return [attributes.get("class") for found, attributes in self.elements if found == tag]


def full_page():
    page = Page(EVIL, EVIL, footer=EVIL)
    page.heading(EVIL)
    page.paragraph(EVIL)
    page.key_numbers([KeyNumber(EVIL, EVIL, EVIL, EVIL, good=True), KeyNumber("p95", "8.1", "ms")])
    page.plot(time_per_stage({EVIL: {EVIL: 1.0}}, title=EVIL), EVIL)
    page.table([EVIL, "p50", "unit"], [[EVIL, 1.5, "ms"], ["b", "<1", ""]], EVIL)
    page.commands([EVIL, "hebe figures"])
    return page


def test_all_text_is_escaped():
    html = full_page().render()
    elements = Elements(html)
    assert "script" not in {tag for tag, _ in elements.elements}
    assert elements.text.count(EVIL) >= 14


def test_the_page_loads_nothing():
    html = full_page().render()
    for tag, attributes in Elements(html).elements:
        assert tag not in ("link", "script", "img", "iframe", "object")
        assert not {name for name in attributes if name in ("src", "href", "srcset", "action")}
    assert "default-src 'none'" in html
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_columns_of_numbers_stand_to_the_right():
    elements = Elements(full_page().render())
    assert elements.classes("th") == [None, "right", None]
    assert elements.classes("td") == [None, "right", None] * 2


def test_a_table_may_say_which_columns_stand_to_the_right():
    page = Page("x")
    page.table(["a", "b"], [["1", "x"]], right=[False, True])
    assert Elements(page.render()).classes("td") == [None, "right"]


def test_a_good_number_is_marked():
    values = [name for name in Elements(full_page().render()).classes("div") if name and name.startswith("value")]
    assert values == ["value good", "value"]


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="3 cells under 2 headings"):
        Page("x").table(["a", "b"], [[1, 2, 3]])


def test_write_replaces_the_page_whole(tmp_path):
    path = tmp_path / "demo" / "index.html"
    assert Page("one").write(path) == path
    Page("two").write(path)
    assert "<title>two</title>" in path.read_text()
    assert [entry.name for entry in path.parent.iterdir()] == ["index.html"]
