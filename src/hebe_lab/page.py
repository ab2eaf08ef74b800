"""A study's document: its numbers beside the paper's, pictures, explanations, and how to run it again."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hebe.report.document import Block, Commands, Document, Heading, KeyNumber, KeyNumbers
from hebe.report.figures import Figure, FigureFile, figure_table
from hebe.report.tables import format_number
from hebe_lab.study import StudyResult


def study_document(description: str, file: FigureFile, result: StudyResult) -> Document:
    """One run; its data are the figure file's, and the tables."""
    figures = {figure.name: figure for figure in file.figures}
    blocks: list[Block] = [KeyNumbers([_key_number(figures[name]) for name in result.lead]), *result.content]
    if figures:
        blocks += [Heading("Figures"), figure_table(file.figures)]
    for note in dict.fromkeys(figure.note for figure in file.figures if figure.note):
        blocks.append(f"{', '.join(figure.name for figure in file.figures if figure.note == note)}: {note}")
    tables = [
        {"title": table.title, "columns": table.headings, "rows": [list(row) for row in table.rows], "note": table.note}
        for table in result.tables
    ]
    return Document(
        file.name,
        [*blocks, Heading("Run it again"), Commands([file.command])],
        description,
        _footer(file),
        {**file.to_dict(), "tables": tables},
    )


def _key_number(figure: Figure) -> KeyNumber:
    paper = f"the paper: {_paper(figure)}" if figure.paper is not None else ""
    target = f"target {figure.target}".replace(" ", "\N{NO-BREAK SPACE}") if figure.target else ""
    note = ", ".join(filter(None, (paper, target)))
    label = re.sub("([._])", "\\1\N{ZERO WIDTH SPACE}", figure.name)  # where a long name may be broken
    return KeyNumber(label, format_number(figure.value), figure.unit, note, figure.met)


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
