"""Compares the code of two commits, wherever it lies: python scripts/same_code.py BEFORE [AFTER]

Prints each function, class, constant and other statement that stands at the top of a module in one commit only,
and exits with 1 if there is one. Modules, imports, comments and docstrings of modules do not count, and names of
modules within strings count as one. So a commit that only moves, merges or splits modules shows nothing.

Without AFTER it compares with the working tree. `--tests` compares the names and parameters of the collected tests too,
which takes a minute a commit.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("src", "tests", "benchmarks", "scripts")
_MODULE = re.compile(r"\b(?:hebe|hebe_lab|tests|benchmarks)(?:[./][a-z_0-9]+)+(?:\.py)?\b")


class _WithoutImports(ast.NodeTransformer):
    """Drops imports, and names of modules from strings."""

    def visit_Import(self, _node: ast.Import) -> None:
        """Dropped."""

    def visit_ImportFrom(self, _node: ast.ImportFrom) -> None:
        """Dropped."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        """Module names become one name, and where a text's lines break does not count."""
        if isinstance(node.value, str):
            node.value = " ".join(_MODULE.sub("MODULE", node.value).split())
        elif isinstance(node.value, bytes):
            node.value = _MODULE.sub("MODULE", node.value.decode("latin-1")).encode("latin-1")
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """A module's full name becomes one name, wherever it lies."""
        if _MODULE.fullmatch(ast.unparse(node)):
            return ast.Name("MODULE", node.ctx)
        return self.generic_visit(node)


def statements(source: str) -> Iterator[tuple[str, str]]:
    """Name and syntax tree of each statement at the top of a module, but for imports and the module's docstring."""
    body = ast.parse(source).body
    if body and _is_text(body[0]):
        body = body[1:]
    for node in body:
        kept = _WithoutImports().visit(node)
        if kept is None or (isinstance(node, ast.If) and not node.body):
            continue
        yield _name(node), ast.dump(kept)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    return ast.unparse(node).splitlines()[0][:100]


def tree_of(commit: str | None) -> Path:
    """A folder with the commit's files, or the working tree."""
    if commit is None:
        return Path()
    archive = subprocess.run(["git", "archive", commit], capture_output=True, check=True).stdout
    folder = Path(tempfile.mkdtemp(prefix="same-code-"))
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def code_of(tree: Path) -> tuple[Counter[tuple[str, str]], dict[tuple[str, str], Path]]:
    """Every statement of a tree, how often it is there, and a module that has it."""
    found: Counter[tuple[str, str]] = Counter()
    where = {}
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*.py")):
            for statement in statements(path.read_text()):
                found[statement] += 1
                where[statement] = path.relative_to(tree)
    return found, where


def tests_of(tree: Path) -> Counter[str]:
    """Names and parameters of the tests that pytest collects there."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:xdist"]
    environment = {"PYTHONPATH": str(tree.resolve() / "src"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment, check=False)
    names = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    if done.returncode or not names:
        raise SystemExit(f"pytest collected nothing in {tree}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Counter(names)


def main() -> int:
    """Compare and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", help="a commit; the working tree if none is given")
    parser.add_argument("--tests", action="store_true", help="compare the collected tests too")
    options = parser.parse_args()
    trees = tree_of(options.before), tree_of(options.after)
    (before, was), (after, now) = map(code_of, trees)
    differences = [
        *(f"- {was[one]}: {one[0]}" for one in (before - after).elements()),
        *(f"+ {now[one]}: {one[0]}" for one in (after - before).elements()),
    ]
    print("\n".join(sorted(differences)) or f"the same {before.total()} statements")
    if options.tests:
        ran, runs = map(tests_of, trees)
        tests = [*(f"- {one}" for one in (ran - runs).elements()), *(f"+ {one}" for one in (runs - ran).elements())]
        print("\n".join(sorted(tests)) or f"the same {ran.total()} tests")
        differences += tests
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
