"""Where things lie that tests read: the checkout, and the recorded data beside it, which is not part of the product."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SHARED_DATA = ROOT.parent / "shared" / "data"
