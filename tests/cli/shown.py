"""What tables look like on a wide terminal."""

import io

from rich.console import Console


def shown(tables) -> str:
    """The text of some tables and notes, without colours, runs of spaces as one."""
    console = Console(file=io.StringIO(), width=240)
    for table in tables:
        console.print(table, crop=False)
    return "\n".join(" ".join(line.split()) for line in console.file.getvalue().splitlines())
