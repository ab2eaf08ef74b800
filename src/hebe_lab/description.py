"""The one-line DESCRIPTION of a benchmark or study, and lists of them that do not import what they list."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from rich.text import Text

from hebe.report.tables import Column, FittingTable


def module_description(module: str) -> str | None:
    """The string that `module` assigns to DESCRIPTION at its top level, read from its source without running it.

    None if there is no such module or assignment; raises `ValueError` if it is not a plain string.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    for statement in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == "DESCRIPTION" for target in targets):
            return str(ast.literal_eval(value))
    return None


def description_table(descriptions: Mapping[str, str]) -> FittingTable:
    """Names and descriptions, for the terminal."""
    table = FittingTable("", Column(folds=True))
    for name, description in descriptions.items():
        table.add_row(Text(name, "bold"), description)
    return table
