"""A study's page: its numbers beside the paper's, pictures, explanations, and how to run it again."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hebe.report.figures import Figure, FigureFile
from hebe.report.html import KeyNumber, Page
from hebe.report.tables import format_number
from hebe.studies.study import Heading, Picture, StudyResult, Table


def study_page(description: str, file: FigureFile, result: StudyResult) -> Page:
    """The page of one run, not yet written."""
    page = Page(file.name, description, _footer(file))
    if result.lead:
        figures = {figure.name: figure for figure in file.figures}
        page.key_numbers([_key_number(figures[name]) for name in result.lead])
    for block in result.content:
        if isinstance(block, Heading):
            page.heading(block.text)
        elif isinstance(block, Picture):
            page.plot(block.svg, block.caption)
        elif isinstance(block, Table):
            caption = " ".join(filter(None, (f"{block.title}.", block.note)))
            page.table(block.columns, block.texts(), caption, block.numeric())
        else:
            page.paragraph(block)
    if file.figures:
        page.heading("Figures")
        page.table(
            ["figure", "ours", "spread", "the paper", "unit", "target", "met"],
            [_row(figure) for figure in file.figures],
            right=[False, True, True, True, False, False, False],
        )
        for note in dict.fromkeys(figure.note for figure in file.figures if figure.note):
            page.paragraph(f"{', '.join(figure.name for figure in file.figures if figure.note == note)}: {note}")
    page.heading("Run it again")
    page.commands([file.command])
    return page


def _key_number(figure: Figure) -> KeyNumber:
    paper = f"the paper: {_paper(figure)}" if figure.paper is not None else ""
    target = _whole(f"target {figure.target}") if figure.target else ""
    note = ", ".join(filter(None, (paper, target)))
    label = re.sub("([._])", "\\1\N{ZERO WIDTH SPACE}", figure.name)  # where a long name may be broken
    return KeyNumber(label, format_number(figure.value), figure.unit, note, figure.met)


def _row(figure: Figure) -> list[str]:
    spread = ""
    if figure.low is not None and figure.high is not None:
        spread = _whole(f"{format_number(figure.low)} to {format_number(figure.high)}")
    met = "" if figure.met is None else "met" if figure.met else "missed"
    target = _whole(figure.target or "")
    return [figure.name, format_number(figure.value), spread, _paper(figure), figure.unit, target, met]


def _whole(text: str) -> str:
    """The text as one word, which stays on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _paper(figure: Figure) -> str:
    if figure.paper is None or isinstance(figure.paper, str):
        return figure.paper or ""
    return format_number(figure.paper)


def _footer(file: FigureFile) -> str:
    machine = file.machine
    memory_gib = int(machine.get("memory_bytes", 0)) / 2**30
    return (
        f"{machine.get('cpu', 'unknown')}, {machine.get('cores', 0)} cores, {memory_gib:.0f} GiB, "
        f"{machine.get('kernel', 'unknown')}; Python {machine.get('python', 'unknown')}.\n"
        f"Commit {file.commit}; {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {file.seconds:.1f} s"
        f"{', a quick run: fewer repeats' if file.quick else ''}."
    )
