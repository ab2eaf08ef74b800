"""What a document looks like on a wide terminal."""

import io

from rich.console import Console

from hebe.report.terminal import on_terminal


def shown(document, width=240) -> str:
    """The text of a document's blocks, without colours, runs of spaces as one."""
    return "\n".join(" ".join(line.split()) for line in printed(document, width).splitlines())


def printed(document, width) -> str:
    """The same with its spaces."""
    console = Console(file=io.StringIO(), width=width)
    for part in on_terminal(document.blocks):
        console.print(part, crop=False)
    return console.file.getvalue()
