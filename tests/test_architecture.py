"""Holds the packages to what each may import, and the whole source to a few rules of the house."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from scripts.size import circles, folder_graphs, imports, modules_by_folder
from tests.places import ROOT

SOURCE = ROOT / "src"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts)

ROOT_DATA = {"query", "spec", "profile", "op_graph", "latency", "server_configuration", "_version"}
"""Modules of the package's root that are plain data; together they are the package "root"."""

DECISIONS = {"root", "scheduling", "planning", "workload"}
ALLOWED = {
    "root": set(),
    "kernels": set(),
    "machine": {"root"},
    "scheduling": {"root"},
    "planning": {"root"},
    "workload": {"root"},
    "report": {"root"},
    "embeddings": {"root", "kernels", "machine"},
    "models": {"root", "kernels", "machine", "embeddings"},
    "runtime": {"root", "machine", "scheduling", "embeddings", "models"},
    "simulation": DECISIONS,
    "serving": {"root", "machine", "scheduling", "runtime"},
    "load_generator": {"root", "workload"},
    "profiling": {
        *DECISIONS, "machine", "report", "models", "runtime", "serving", "load_generator", "simulation",
    },
    "capacity": {*DECISIONS, "simulation", "report"},
}  # fmt: skip
"""What of Hebe each package may import besides itself; its sub-packages too, but for those with a row of their own."""
ALLOWED |= {
    "capacity.files": ALLOWED["capacity"] | {"profiling"},  # profiles are among the files that planning reads
    "runtime.executors": ALLOWED["runtime"] | {"kernels"},  # the batch loop calls compiled lookups without the GIL
    "runtime.workers": {"root", "machine", "scheduling"},
    "serving.access": set(),
    "serving.grpc": set(),
    "serving.http1": set(),
    "serving.http": {"root"},
    "serving.requests": {"root", "embeddings"},  # columns of keys are read straight into a batch's block
    "serving.monitoring": {"root", "runtime"},
    "models.architectures": {"root"},
    "models.catalog": {"root"},
    "report.plots": {"root"},
}
ALLOWED["cli"] = {*ALLOWED, "package"}
ALLOWED["hebe_lab"] = {*ALLOWED, "package"}
"""A second import package, which the product never imports."""
ALLOWED["package"] = {"root", "embeddings", "runtime", "serving", "cli"}
"""The package itself: `hebe.load`, `hebe.Server`, `hebe.HPS` and `hebe.JaggedKeys`, imported when first used, and
`python -m hebe`."""

MAX_MODULES = 14
"""In a folder, `__init__` not counted."""

PURE = {"numpy", "scipy"}
THIRD_PARTY = {
    "root": {"numpy"},
    "scheduling": PURE,
    "planning": PURE,
    "workload": PURE,
    "simulation": PURE,
    "capacity": {*PURE, "tomli_w"},
    "kernels": {"numpy", "torch", "numba", "llvmlite", "triton"},
    "report": {"numpy", "matplotlib", "cycler", "jinja2", "markupsafe", "rich"},
}
"""For some packages, all of other people's packages that they may import."""

WORLD = {
    "asyncio", "concurrent", "datetime", "http", "io", "logging", "multiprocessing", "os", "pathlib", "queue",
    "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "sys",
    "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
"""Clocks, threads, chance and I/O of the standard library: not in packages that only decide."""
DECIDING = {"scheduling", "planning"}

VAGUE_NAMES = {"utils", "util", "common", "core", "base", "helpers", "helper", "manager", "registry", "plugins"}
PICKLING = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
SEEDED_RANDOM = {
    "default_rng",
    "Generator",
    "SeedSequence",
    "BitGenerator",
    "MT19937",
    "PCG64",
    "PCG64DXSM",
    "Philox",
    "SFC64",
}


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    lazy: bool


def package_of(module: str) -> str:
    """The row of the table that a module belongs to."""
    top, *parts = module.split(".")
    if top == "hebe_lab":
        return top
    if not parts or parts[0] == "__main__":
        return "package"
    if parts[0] in ROOT_DATA:
        return "root"
    return ".".join(parts[:2]) if ".".join(parts[:2]) in ALLOWED else parts[0]


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, package: str) -> list[Import]:
    """Every import of a file, those within functions, `try` and `if` (lazy) too; `package` resolves relative ones."""
    found = []
    for node, lazy in statements_of(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                origin = ".".join([*parent, origin] if origin else parent)
            names = [origin]
            if origin == "hebe":  # of a module, of one of the entry points, or of the version, which anybody may
                names = [f"hebe.{alias.name}" if is_part(alias.name) else "hebe" for alias in node.names
                         if alias.name != "__version__"]  # fmt: skip
        found += [Import(name, node.lineno, lazy) for name in names]
    return found


def statements_of(outer: ast.AST, lazy: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every statement of a file, and whether it is within a function, `try` or `if`."""
    lazy = lazy or isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try | ast.If)
    for inner in ast.iter_child_nodes(outer):
        if not isinstance(inner, ast.expr):
            yield inner, lazy
            yield from statements_of(inner, lazy)


def is_part(name: str) -> bool:
    return (SOURCE / "hebe" / name).is_dir() or (SOURCE / "hebe" / f"{name}.py").is_file()


def errors_of_imports(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What a file imports that its package may not, one line each."""
    package = package_of(module)
    top_package = package.partition(".")[0]
    parent = module if is_package else module.rpartition(".")[0]
    errors = []
    for found in imports_of(ast.parse(source), parent):
        top = found.module.split(".")[0]
        if top in ("hebe", "hebe_lab"):
            target = package_of(found.module)
            allowed = {package, *ALLOWED[package]}
            if not {target, target.partition(".")[0]} & allowed and target.partition(".")[0] != top_package:
                errors.append(f"{module}:{found.line}: {package} may not import {found.module}")
        elif top in sys.stdlib_module_names:
            if top_package in DECIDING and top in WORLD:
                errors.append(f"{module}:{found.line}: a deciding package may not import {top}")
        elif top_package in THIRD_PARTY and top not in THIRD_PARTY[top_package]:
            errors.append(f"{module}:{found.line}: {package} may not import {top}")
        if top in PICKLING:
            errors.append(f"{module}:{found.line}: {top} runs what it reads; use safetensors, TOML or JSON")
        if top == "triton" and not found.lazy:
            errors.append(f"{module}:{found.line}: import triton where it is used, most machines lack it")
    return errors


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def errors_of_calls(source: str, module: str) -> list[str]:
    """Calls that unpickle, or draw from NumPy's global random state, or do I/O in a deciding package."""
    errors = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        keywords = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
        if called == "torch.load" and keywords.get("weights_only") is not True:
            errors.append(f"{module}:{node.lineno}: torch.load needs weights_only=True")
        if called in ("np.load", "numpy.load") and keywords.get("allow_pickle"):
            errors.append(f"{module}:{node.lineno}: np.load with allow_pickle")
        if called.startswith(("np.random.", "numpy.random.")) and called.split(".")[2] not in SEEDED_RANDOM:
            errors.append(f"{module}:{node.lineno}: {called} draws from global random state; pass a Generator")
        if called in ("open", "print", "input") and package_of(module).partition(".")[0] in DECIDING:
            errors.append(f"{module}:{node.lineno}: {called}() in a deciding package")
    return errors


def test_the_source_is_found():
    assert len(MODULES) > 10


def test_every_package_is_in_the_table():
    packages = {package_of(module_name(path)) for path in MODULES}
    assert packages <= set(ALLOWED), f"no row in the import table for {sorted(packages - set(ALLOWED))}"


def test_the_table_has_no_circle():
    rows = {row: allowed - {row} for row, allowed in ALLOWED.items()}
    rows["cli"] = rows["cli"] - {"package"}  # `python -m hebe` one way, what the package offers the other
    assert set(TopologicalSorter(rows).static_order()) == set(rows)


def test_no_modules_import_each_other():
    found = circles(imports())
    assert not found, "\n".join(" -> ".join(circle) for circle in found)


def test_the_files_and_folders_of_a_folder_do_not_import_each_other():
    found = [
        f"in {folder}: {' -> '.join(circle)}"
        for folder, inside in folder_graphs(imports()).items()
        for circle in circles(inside)
    ]
    assert not found, "\n".join(found)


def test_the_search_for_circles_itself():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) != []
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    across = {"p.a.x": {"p.b.y"}, "p.b.z": {"p.a.w"}, "p.a.w": set(), "p.b.y": set()}
    assert circles(across) == []
    assert [set(circle) for circle in circles(folder_graphs(across)["p"])] == [{"a", "b"}]


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_a_folder_holds_what_a_reader_can_overlook(folder):
    paths = [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]
    full = {
        str(inside.relative_to(ROOT)): count
        for inside, count in modules_by_folder(paths).items()
        if count > MAX_MODULES
    }
    assert not full, f"more than {MAX_MODULES} modules: {full}"


def test_a_folder_says_what_it_is():
    folders = {path.parent for path in MODULES}
    texts = {folder: ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) for folder in folders}
    silent = [
        str(folder.relative_to(ROOT))
        for folder, text in texts.items()
        if not text or not text.splitlines()[0].endswith((".", ":"))
    ]
    assert not silent, f"no line that says what they are: {silent}"


def test_a_module_imports_only_what_its_package_may():
    errors = [
        error
        for path in MODULES
        for error in errors_of_imports(path.read_text(), module_name(path), is_package=path.name == "__init__.py")
    ]
    assert not errors, "\n".join(errors)


def test_a_module_neither_unpickles_nor_draws_from_global_chance():
    errors = [error for path in MODULES for error in errors_of_calls(path.read_text(), module_name(path))]
    assert not errors, "\n".join(errors)


def test_a_name_says_what_is_inside():
    vague = {module_name(path) for path in MODULES if VAGUE_NAMES & set(module_name(path).split("."))}
    assert not vague, f"{', '.join(sorted(vague))}: that says nothing about its content"


def test_every_package_imported_is_declared():
    """What is imported at the top of a module must be among the dependencies, what lazily among those or the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {distribution_of(line) for line in project["dependencies"]}
    optional = needed | {distribution_of(line) for extra in project["optional-dependencies"].values() for line in extra}
    providers = packages_distributions()
    errors = set()
    for path in MODULES:
        for found in imports_of(ast.parse(path.read_text()), module_name(path)):
            top = found.module.split(".")[0]
            if top in sys.stdlib_module_names or top in ("hebe", "hebe_lab", "triton"):
                continue
            provided = {distribution_of(name) for name in providers.get(top, [top])}
            if not provided & (optional if found.lazy else needed):
                errors.add(f"{module_name(path)}:{found.line}: {top} is not declared in pyproject.toml")
    assert not errors, "\n".join(sorted(errors))


def distribution_of(requirement: str) -> str:
    """The normalised name of a distribution, of a requirement line or of metadata."""
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", requirement)[0]).lower()


def test_importing_hebe_imports_nothing_heavy():
    errors = [
        found
        for found in imports_of(ast.parse((SOURCE / "hebe" / "__init__.py").read_text()), "hebe")
        if not found.lazy and found.module.split(".")[0] not in (*sys.stdlib_module_names, "hebe")
    ]
    assert not errors


@pytest.mark.parametrize(
    ("module", "source", "error"),
    [
        ("hebe.scheduling.node.node", "import torch", "scheduling may not import torch"),
        ("hebe.scheduling.node.node", "import time", "may not import time"),
        ("hebe.scheduling.node.node", "def f():\n    from asyncio import sleep", "may not import asyncio"),
        (
            "hebe.scheduling.node.node",
            "from hebe.runtime.workers.worker import Worker",
            "may not import hebe.runtime.workers.worker",
        ),
        ("hebe.scheduling.node.node", "from hebe import runtime", "may not import hebe.runtime"),
        ("hebe.scheduling.events", "from ..runtime import loaded_model", "may not import hebe.runtime"),
        ("hebe.scheduling.events", "from .. import runtime", "may not import hebe.runtime"),
        ("hebe.scheduling.node.node", "from hebe import load", "may not import hebe"),
        ("hebe.spec", "import scipy.optimize", "root may not import scipy"),
        ("hebe.workload.arrivals", "import numba", "workload may not import numba"),
        ("hebe.report.plots.latency", "import hebe.serving.server", "may not import hebe.serving.server"),
        ("hebe.models.repository.repository", "import pickle", "pickle runs what it reads"),
        ("hebe.kernels.gather", "import triton", "import triton where it is used"),
        ("hebe.scheduling.node.node", "from hebe.spec import ModelSpec\nimport numpy as np, math", None),
        ("hebe.scheduling.node.node", "from .batching import Batch", None),
        ("hebe.serving.metadata", "from hebe import __version__", None),
        ("hebe.serving.metadata", "import hebe", "serving may not import hebe"),
        ("hebe.kernels.gather", "def f():\n    import triton", None),
        ("hebe.kernels.gather", "try:\n    import triton\nexcept ImportError:\n    pass", None),
        ("hebe.cli.main", "import hebe\nimport torch, time", None),
        ("hebe_lab.bench.serving.serve", "import hebe", None),
    ],
)
def test_the_import_check_itself(module, source, error):
    errors = errors_of_imports(source, module)
    assert (len(errors) == 1 and error in errors[0]) if error else not errors, errors


@pytest.mark.parametrize(
    ("module", "source", "error"),
    [
        ("hebe.models.x", "torch.load(p)", "weights_only"),
        ("hebe.models.x", "torch.load(p, weights_only=False)", "weights_only"),
        ("hebe.models.x", "np.load(p, allow_pickle=True)", "allow_pickle"),
        ("hebe.models.x", "np.random.rand(3)", "global random state"),
        ("hebe.planning.x", "open(p)", "deciding package"),
        ("hebe.models.x", "torch.load(p, weights_only=True)\nnp.load(p)\nnp.random.default_rng(1)\nopen(p)", None),
    ],
)
def test_the_call_check_itself(module, source, error):
    errors = errors_of_calls(source, module)
    assert (len(errors) == 1 and error in errors[0]) if error else not errors, errors
