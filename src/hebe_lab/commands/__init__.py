"""`hebe study`, `hebe bench`, `hebe figures`: they join the command by the entry-point group `hebe.commands`."""

COMMANDS: dict[str, tuple[str, str, str]] = {
    "bench": ("hebe_lab.commands.bench", "bench", "Run a benchmark and write its figures."),
    "study": ("hebe_lab.commands.study", "study", "Reproduce a paper's tables and figures, ours beside theirs."),
    "figures": ("hebe_lab.commands.figures", "figures", "Show all measured figures beside their targets."),
}
"""Name -> module, attribute and one-line summary of every command."""
