"""What a user sees by name is as the files beside this say: a change of it is made on purpose, with the files.

`python scripts/surface.py` writes them. It runs as a process of its own: it works in another folder.
"""

import os
import subprocess
import sys

from tests.places import ROOT

TIMEOUT_S = 600.0


def test_commands_exports_configuration_metrics_and_json_keys_are_as_they_were():
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    checked = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "surface.py"), "--check"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
