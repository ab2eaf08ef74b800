"""Write the files that docs/planning.md and docs/simulation.md show into the current directory, for their commands and
README.md's. One that is there and differs is left alone, and nothing is written.
"""

import re
import sys
from pathlib import Path

_PAGES = ("planning.md", "simulation.md")
_FILE = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", re.M | re.S)


def example_files() -> dict[str, str]:
    """The contents by name."""
    docs = Path(__file__).resolve().parents[1] / "docs"
    return {name: content for page in _PAGES for name, content in _FILE.findall((docs / page).read_text("utf-8"))}


def main() -> None:
    """Write them, and say which."""
    files = {Path(name): content for name, content in example_files().items()}
    for path, content in files.items():
        if path.exists() and path.read_text("utf-8") != content:
            sys.exit(f"{path} is there already, and another: nothing was written; go to another directory")
    for path, content in files.items():
        path.write_text(content, "utf-8")
    print("written:", *files)


if __name__ == "__main__":
    main()
