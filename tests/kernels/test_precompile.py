import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from hebe.kernels import kernel_cache
from hebe.kernels.lookup.row_format import RowFormat

MAKERS = {"compile_kernel", "compile_callback"}


def functions_compiled_in_the_sources():
    """The names of all functions that kernel modules have compiled."""
    found = Counter()
    for path in Path(kernel_cache.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                found[f"{path.stem}.{node.args[0].id}"] += 1
    return found


def test_every_kernel_is_compiled_beforehand():
    """In a process in which nothing is really compiled: that takes minutes."""
    code = (
        "import json, pathlib\n"
        "from hebe.kernels import compiled\n"
        "made = []\n"
        "def note(function, *_):\n"
        "    made.append(f'{pathlib.Path(function.__code__.co_filename).stem}.{function.__name__}')\n"
        "compiled.compile_kernel = compiled.compile_callback = note\n"
        "from hebe.kernels.precompile import STEPS, precompile\n"
        "steps = []\n"
        "precompile(lambda name, done: steps.append(done))\n"
        "assert steps == list(range(len(STEPS) + 1))\n"
        "print(json.dumps(made))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    made = Counter(json.loads(done.stdout))
    sources = functions_compiled_in_the_sources()
    assert len(sources) > 30
    assert set(made) == set(sources)
    variants = {name: number for name, number in made.items() if number > sources[name]}
    formats = len(RowFormat)
    assert variants == {"fused_lookup.look_up": formats, "add_hot_rows.add": formats, "find_keys._find": 2}
