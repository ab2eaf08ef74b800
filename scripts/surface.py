"""Write what a user of Hebe sees by name into tests/surface, or compare it with what is there.

    python scripts/surface.py              write the files
    python scripts/surface.py --check      print a unified diff, and exit with 1 if there is one
    python scripts/surface.py --slow       the same of what takes minutes, in the file slow_keys.txt

    commands.txt        commands, their options and arguments, and exit codes that were seen
    exports.txt         what `hebe` exports, with the signatures of what a user reaches from there
    configuration.txt   keys of the files that a user writes, and the environment's variables
    metrics.txt         metrics of running servers, with their types and labels
    keys.txt            keys of JSON: of `--json`, of the HTTP interface, of files that are written

Everything is found through `python -m hebe`, `import hebe` and running servers, so that no module's place matters. What
has no other way is found by the name of its class, in `surface_sources`.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tempfile
from pathlib import Path

from surface_commands import command_lines
from surface_configuration import configuration_lines
from surface_exports import export_lines
from surface_runs import Workplace, fast_runs, slow_runs

_SLOW = "# Not compared by the test, since it takes minutes: python scripts/surface.py --slow --check"
FOLDER = Path(__file__).resolve().parents[1] / "tests" / "surface"


def fast_surface() -> dict[str, list[str]]:
    """The lines of each file but the slow one, sorted."""
    with tempfile.TemporaryDirectory(prefix="hebe-surface-") as folder, Workplace(Path(folder)) as place:
        seen = fast_runs(place)
        return {
            "commands.txt": sorted({*command_lines(), *seen.exit_codes}),
            "exports.txt": sorted(export_lines(place)),
            "configuration.txt": sorted(configuration_lines(place)),
            "metrics.txt": sorted(seen.metrics),
            "keys.txt": sorted(seen.keys),
        }


def slow_surface() -> dict[str, list[str]]:
    """The lines of the slow file, sorted."""
    with tempfile.TemporaryDirectory(prefix="hebe-surface-") as folder, Workplace(Path(folder)) as place:
        seen = slow_runs(place)
        metrics = {f"metrics (a profile): {line}" for line in seen.metrics}
        return {"slow_keys.txt": [_SLOW, *sorted({*seen.keys, *metrics, *seen.exit_codes})]}


def difference(files: dict[str, list[str]]) -> str:
    """A unified diff from the files that are there to `files`; empty if they are the same."""
    lines: list[str] = []
    for name, content in files.items():
        path = FOLDER / name
        before = path.read_text("utf-8").splitlines() if path.exists() else []
        lines += difflib.unified_diff(
            before, content, f"tests/surface/{name}", f"{name} as it is now", lineterm="", n=1
        )
    return "\n".join(lines)


def main() -> None:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--slow", action="store_true", help="what takes minutes: profile, demo, bench")
    options = parser.parse_args()
    os.environ["COLUMNS"] = "2000"  # no message is folded
    os.environ["HEBE_DEBUG"] = "0"
    files = slow_surface() if options.slow else fast_surface()
    if options.check:
        found = difference(files)
        if found:
            sys.exit(found)
        return
    for name, content in files.items():
        (FOLDER / name).write_text("".join(f"{line}\n" for line in content), "utf-8")
        print(f"{FOLDER / name}: {len(content)} lines")


if __name__ == "__main__":
    main()
