import re
from html.parser import HTMLParser

from hebe.report.document import Commands, Document, Heading, KeyNumber, KeyNumbers, Picture, Table, Text, Tone
from hebe.report.html import page, write_page, write_picture
from hebe.report.plots.latency import time_per_stage
from hebe.report.tables import Column

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
    return page(
        Document(
            EVIL,
            [
                Heading(EVIL),
                EVIL,
                Text(EVIL, Tone.WARNING),
                KeyNumbers([KeyNumber(EVIL, EVIL, EVIL, EVIL, good=True), KeyNumber("p95", "8.1", "ms")]),
                Picture(lambda: time_per_stage({EVIL: {EVIL: 1.0}}, title=EVIL), EVIL),
                Table(EVIL, [EVIL, "p50", "unit"], [[EVIL, 1.5, "ms"], ["b", "<1", ""]], EVIL, EVIL),
                Commands([EVIL, "hebe figures"]),
            ],
            EVIL,
            EVIL,
        )
    )


def test_all_text_is_escaped():
    html = full_page()
    elements = Elements(html)
    assert "script" not in {tag for tag, _ in elements.elements}
    assert elements.text.count(EVIL) >= 17


def test_the_page_loads_nothing():
    html = full_page()
    for tag, attributes in Elements(html).elements:
        assert tag not in ("link", "script", "img", "iframe", "object")
        assert not {name for name in attributes if name in ("src", "href", "srcset", "action")}
    assert "default-src 'none'" in html
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_columns_of_numbers_stand_to_the_right():
    elements = Elements(full_page())
    assert elements.classes("th") == [None, "right", None]
    assert elements.classes("td") == [None, "right", None] * 2


def test_a_table_may_say_which_columns_stand_to_the_right():
    table = Table("", [Column("a"), Column("b", right=True)], [["1", "x"]])
    assert Elements(page(Document("x", [table]))).classes("td") == [None, "right"]


def test_a_table_is_captioned_by_title_note_and_caption():
    table = Table("Waits", ["a"], [["1"]], "In ms.", "Ours.")
    assert "<caption>Waits. In ms. Ours.</caption>" in page(Document("x", [table]))
    assert "<caption>" not in page(Document("x", [Table("", ["a"], [["1"]])]))
    assert "<table>" not in page(Document("x", [Table("Waits", ["a"], [])]))


def test_cells_and_paragraphs_are_marked_by_their_tone():
    table = Table("", [Column("a"), Column("b", right=True)], [[Text("x", Tone.GOOD), Text("missed", Tone.BAD)]])
    elements = Elements(page(Document("x", [table, Text("late", Tone.WARNING), Text("so"), "explained"])))
    assert elements.classes("td") == ["good", "right bad"]
    assert elements.classes("p") == ["warning", None, None]


def test_what_the_page_says_elsewhere_is_left_out():
    assert "twice" not in page(Document("x", [Text("twice", on_page=False)]))


def test_a_good_number_is_marked():
    values = [name for name in Elements(full_page()).classes("div") if name and name.startswith("value")]
    assert values == ["value good", "value"]


def test_write_replaces_the_page_whole(tmp_path):
    path = tmp_path / "demo" / "index.html"
    assert write_page(Document("one", []), path) == path
    write_page(Document("two", []), path)
    assert "<title>two</title>" in path.read_text()
    assert [entry.name for entry in path.parent.iterdir()] == ["index.html"]


def test_the_first_picture_is_written_alone(tmp_path):
    write_picture(Document("x", ["words", Picture("<svg>1</svg>"), Picture("<svg>2</svg>")]), tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text() == "<svg>1</svg>"
