"""Prints how large Hebe is and how it hangs together: python scripts/size.py  (run by `make size`)

Modules, lines, lines of code and tokens of the product, the lab and the tests; the largest folders; circles of imports
among modules, and among the files and sub-folders of each folder. Tokens are those of Python's tokenizer, without
comments, docstrings and line breaks.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = {"product": ROOT / "src" / "hebe", "lab": ROOT / "src" / "hebe_lab", "tests": ROOT / "tests"}
_NO_TOKENS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
_SHOWN_FOLDERS = 8


@dataclass(frozen=True, slots=True)
class Size:
    """Modules, lines, lines with code on them, tokens."""

    modules: int
    lines: int
    code_lines: int
    tokens: int


def size_of(paths: Iterable[Path]) -> Size:
    """The size of some modules together."""
    modules = lines = code_lines = tokens = 0
    for path in paths:
        source = path.read_text()
        kept = list(tokens_of(source))
        modules += 1
        lines += len(source.splitlines())
        code_lines += len({line for token in kept for line in range(token.start[0], token.end[0] + 1)})
        tokens += len(kept)
    return Size(modules, lines, code_lines, tokens)


def tokens_of(source: str) -> Iterator[tokenize.TokenInfo]:
    """A module's tokens without comments, docstrings and line breaks."""
    texts = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_TOKENS and token.start not in texts and token.string:
            yield token


def module_of(path: Path, source: Path) -> str:
    """The name of the module at `path`, whose top package lies in `source`."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: Path = ROOT / "src") -> dict[str, set[str]]:
    """Module -> modules of the same source tree that it imports, also within functions.

    `from package import name` imports the module `name`, if there is one, else the package. What is imported for types
    alone counts too: a reader follows it.
    """
    paths = {module_of(path, source): path for path in source.rglob("*.py") if "__pycache__" not in path.parts}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (names & set(paths)) or {node.module}
        graph[module] = (found & set(paths)) - {module}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """One circle of imports after the other, each cut at its last arrow before the next is sought."""
    left = {module: set(imported) for module, imported in graph.items()}
    found = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle = error.args[1][::-1]  # an arrow from each to the next
            found.append(circle)
            left[circle[-2]].discard(circle[-1])
        else:
            return found


def folder_graphs(graph: Mapping[str, set[str]]) -> dict[str, dict[str, set[str]]]:
    """Of each folder, the graph of its files and sub-folders, by name.

    A folder's `__init__` belongs to none of them: it only says what the folder offers.
    """
    packages = {module.rpartition(".")[0] for module in graph}
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, imported in graph.items():
        for other in imported:
            a, b = module.split("."), other.split(".")
            shared = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            if shared < min(len(a), len(b)) and module not in packages and other not in packages:
                graphs[".".join(a[:shared])][a[shared]].add(b[shared])
    return {folder: dict(inside) for folder, inside in graphs.items()}


def modules_by_folder(paths: Iterable[Path]) -> Counter[Path]:
    """How many modules lie in each folder, `__init__` not counted."""
    return Counter(path.parent for path in paths if path.name != "__init__.py")


def all_circles() -> list[str]:
    """Every circle of the source tree, in words."""
    graph = imports()
    found = [" -> ".join(circle) for circle in circles(graph)]
    for folder, inside in sorted(folder_graphs(graph).items()):
        found += [f"in {folder or 'src'}: {' -> '.join(circle)}" for circle in circles(inside)]
    return found


def main() -> int:
    """Print it all."""
    every: list[Path] = []
    print(f"{'':10}{'modules':>10}{'lines':>10}{'code':>10}{'tokens':>10}")
    for name, folder in PARTS.items():
        paths = sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)
        size = size_of(paths)
        every += paths
        print(f"{name:10}{size.modules:>10,}{size.lines:>10,}{size.code_lines:>10,}{size.tokens:>10,}")
    print("\nlargest folders")
    for folder, count in modules_by_folder(every).most_common(_SHOWN_FOLDERS):
        print(f"{count:>6}  {folder.relative_to(ROOT)}")
    found = all_circles()
    print(f"\ncircles of imports: {len(found)}")
    for circle in found:
        print(f"        {circle}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
