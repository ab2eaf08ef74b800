"""Holds the rooms to what each may import, and the whole source to a few rules of the house."""

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
from tests.places import ROOT

SOURCE = ROOT / "src" / "hebe"
MODULES = sorted(SOURCE.rglob("*.py"))

ROOT_DATA = {"query", "spec", "profile", "op_graph", "latency", "server_configuration", "_version"}
"""Modules of the package's root that are plain data; together they are the room "root"."""

ROOMS = {
    "root": set(),
    "scheduling": {"root"},
    "planning": {"root"},
    "workload": {"root"},
    "report": {"root"},
    "kernels": set(),
    "machine": set(),
    "embeddings": {"root", "kernels", "machine"},
    "models": {"root", "machine", "kernels", "embeddings"},
    "runtime": {"root", "machine", "scheduling", "embeddings", "models"},
    "simulation": {"root", "scheduling", "planning", "workload"},
    "capacity": {"root", "scheduling", "planning", "workload", "simulation", "report", "profiling"},
    "serving": {"root", "scheduling", "runtime"},
    "load_generator": {"root", "workload"},
    "profiling": {
        "root",
        "scheduling",
        "planning",
        "workload",
        "models",
        "runtime",
        "serving",
        "load_generator",
        "simulation",
    },
    "cluster": {"root", "scheduling", "planning", "serving"},
    "studies": {
        "root",
        "scheduling",
        "planning",
        "workload",
        "simulation",
        "report",
        "kernels",
        "machine",
        "embeddings",
        "models",
        "runtime",
        "profiling",
        "load_generator",
    },
}
"""The rooms of hebe that each room may import, besides itself."""
ROOMS["bench"] = {*ROOMS, "package"}
ROOMS["cli"] = {*ROOMS, "package"}
ROOMS["package"] = {"root", "embeddings", "runtime", "serving", "cli"}
"""The package itself: `hebe.load`, `hebe.Server`, `hebe.HPS` and `hebe.JaggedKeys`, imported when first used, and
`python -m hebe`."""

PURE = {"numpy", "scipy"}
THIRD_PARTY = {
    "root": {"numpy"},
    "scheduling": PURE,
    "planning": PURE,
    "workload": PURE,
    "simulation": PURE,
    "capacity": {*PURE, "tomli_w"},
    "kernels": {"numpy", "torch", "numba", "llvmlite", "triton"},
    "studies": {*PURE, "matplotlib", "rich", "torch"},
    "report": {"numpy", "matplotlib", "cycler", "jinja2", "markupsafe", "rich"},
}
"""For some rooms, all of other people's packages that they may import."""

WORLD = {
    "asyncio", "concurrent", "datetime", "http", "io", "logging", "multiprocessing", "os", "pathlib", "queue",
    "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "sys",
    "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
"""Clocks, threads, chance and I/O of the standard library: not in rooms that only decide."""
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


def room_of(module: str) -> str:
    """The room that `hebe.ROOM...` belongs to."""
    parts = module.split(".")
    if len(parts) == 1 or parts[1] == "__main__":
        return "package"
    return "root" if parts[1] in ROOT_DATA else parts[1]


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
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
    return (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()


def faults_of_imports(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What a file imports that its room may not, one line each."""
    room = room_of(module)
    package = module if is_package else module.rpartition(".")[0]
    faults = []
    for found in imports_of(ast.parse(source), package):
        top = found.module.split(".")[0]
        if top == "hebe":
            target = room_of(found.module)
            if target != room and target not in ROOMS[room]:
                faults.append(f"{module}:{found.line}: room {room} may not import {found.module}")
        elif top in sys.stdlib_module_names:
            if room in DECIDING and top in WORLD:
                faults.append(f"{module}:{found.line}: a deciding room may not import {top}")
        elif room in THIRD_PARTY and top not in THIRD_PARTY[room]:
            faults.append(f"{module}:{found.line}: room {room} may not import {top}")
        if top in PICKLING:
            faults.append(f"{module}:{found.line}: {top} runs what it reads; use safetensors, TOML or JSON")
        if top == "triton" and not found.lazy:
            faults.append(f"{module}:{found.line}: import triton where it is used, most machines lack it")
    return faults


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def faults_of_calls(source: str, module: str) -> list[str]:
    """Calls that unpickle, or draw from NumPy's global random state, or do I/O in a deciding room."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        keywords = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
        if called == "torch.load" and keywords.get("weights_only") is not True:
            faults.append(f"{module}:{node.lineno}: torch.load needs weights_only=True")
        if called in ("np.load", "numpy.load") and keywords.get("allow_pickle"):
            faults.append(f"{module}:{node.lineno}: np.load with allow_pickle")
        if called.startswith(("np.random.", "numpy.random.")) and called.split(".")[2] not in SEEDED_RANDOM:
            faults.append(f"{module}:{node.lineno}: {called} draws from global random state; pass a Generator")
        if called in ("open", "print", "input") and room_of(module) in DECIDING:
            faults.append(f"{module}:{node.lineno}: {called}() in a deciding room")
    return faults


def test_the_source_is_found():
    assert len(MODULES) > 10


def test_every_room_is_in_the_table():
    rooms = {room_of(module_name(path)) for path in MODULES}
    assert rooms <= set(ROOMS), f"no row in the import table for {sorted(rooms - set(ROOMS))}"


def test_the_table_has_no_cycle():
    rooms = {room: allowed - {room} for room, allowed in ROOMS.items()}
    rooms["cli"] = rooms["cli"] - {"package"}  # `hebe.__version__` one way, `python -m hebe` the other
    rooms["bench"] = rooms["bench"] - {"cli", "package"}
    assert set(TopologicalSorter(rooms).static_order()) == set(rooms)


def test_a_module_imports_only_what_its_room_may():
    faults = [
        fault
        for path in MODULES
        for fault in faults_of_imports(path.read_text(), module_name(path), is_package=path.name == "__init__.py")
    ]
    assert not faults, "\n".join(faults)


def test_a_module_neither_unpickles_nor_draws_from_global_chance():
    faults = [fault for path in MODULES for fault in faults_of_calls(path.read_text(), module_name(path))]
    assert not faults, "\n".join(faults)


def test_a_name_says_what_is_inside():
    vague = {module_name(path) for path in MODULES if VAGUE_NAMES & set(module_name(path).split("."))}
    assert not vague, f"{', '.join(sorted(vague))}: that says nothing about its content"


def test_every_package_imported_is_declared():
    """What is imported at the top of a module must be among the dependencies, what lazily among those or the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {distribution_of(line) for line in project["dependencies"]}
    optional = needed | {distribution_of(line) for extra in project["optional-dependencies"].values() for line in extra}
    providers = packages_distributions()
    faults = set()
    for path in MODULES:
        for found in imports_of(ast.parse(path.read_text()), module_name(path)):
            top = found.module.split(".")[0]
            if top in sys.stdlib_module_names or top in ("hebe", "triton"):
                continue
            provided = {distribution_of(name) for name in providers.get(top, [top])}
            if not provided & (optional if found.lazy else needed):
                faults.add(f"{module_name(path)}:{found.line}: {top} is not declared in pyproject.toml")
    assert not faults, "\n".join(sorted(faults))


def distribution_of(requirement: str) -> str:
    """The normalised name of a distribution, of a requirement line or of metadata."""
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", requirement)[0]).lower()


def test_importing_hebe_imports_nothing_heavy():
    faults = [
        found
        for found in imports_of(ast.parse((SOURCE / "__init__.py").read_text()), "hebe")
        if not found.lazy and found.module.split(".")[0] not in (*sys.stdlib_module_names, "hebe")
    ]
    assert not faults


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("hebe.scheduling.node.node", "import torch", "room scheduling may not import torch"),
        ("hebe.scheduling.node.node", "import time", "may not import time"),
        ("hebe.scheduling.node.node", "def f():\n    from asyncio import sleep", "may not import asyncio"),
        (
            "hebe.scheduling.node.node",
            "from hebe.runtime.workers.worker import Worker",
            "may not import hebe.runtime.workers.worker",
        ),
        ("hebe.scheduling.node.node", "from hebe import runtime", "may not import hebe.runtime"),
        ("hebe.scheduling.node.node", "from ..runtime import worker", "may not import hebe.runtime"),
        ("hebe.scheduling.node.node", "from .. import runtime", "may not import hebe.runtime"),
        ("hebe.scheduling.node.node", "from hebe import load", "may not import hebe"),
        ("hebe.spec", "import scipy.optimize", "room root may not import scipy"),
        ("hebe.workload.arrivals", "import numba", "room workload may not import numba"),
        ("hebe.report.plots.latency", "import hebe.serving.server", "may not import hebe.serving.server"),
        ("hebe_lab.bench.serving.serve", "import hebe.cli.main", "may not import hebe.cli.main"),
        ("hebe.models.repository.repository", "import pickle", "pickle runs what it reads"),
        ("hebe.kernels.gather", "import triton", "import triton where it is used"),
        ("hebe.scheduling.node.node", "from hebe.spec import ModelSpec\nimport numpy as np, math", None),
        ("hebe.scheduling.node.node", "from .batching import Batch", None),
        ("hebe.serving.metadata", "from hebe import __version__", None),
        ("hebe.serving.metadata", "import hebe", "room serving may not import hebe"),
        ("hebe.kernels.gather", "def f():\n    import triton", None),
        ("hebe.kernels.gather", "try:\n    import triton\nexcept ImportError:\n    pass", None),
        ("hebe.cli.main", "import hebe\nimport torch, time", None),
        ("hebe_lab.bench.serving.serve", "import hebe", None),
    ],
)
def test_the_import_check_itself(module, source, fault):
    faults = faults_of_imports(source, module)
    assert (len(faults) == 1 and fault in faults[0]) if fault else not faults, faults


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("hebe.models.x", "torch.load(p)", "weights_only"),
        ("hebe.models.x", "torch.load(p, weights_only=False)", "weights_only"),
        ("hebe.models.x", "np.load(p, allow_pickle=True)", "allow_pickle"),
        ("hebe.models.x", "np.random.rand(3)", "global random state"),
        ("hebe.planning.x", "open(p)", "deciding room"),
        ("hebe.models.x", "torch.load(p, weights_only=True)\nnp.load(p)\nnp.random.default_rng(1)\nopen(p)", None),
    ],
)
def test_the_call_check_itself(module, source, fault):
    faults = faults_of_calls(source, module)
    assert (len(faults) == 1 and fault in faults[0]) if fault else not faults, faults
