"""What the pictures of the kairos studies call and colour alike: the schemes, and what stands beside them."""

from __future__ import annotations

from collections.abc import Mapping

from hebe.report.plots.style import SERIES
from hebe_lab.studies.kairos.contenders import CLOCKWORK, DRS, KAIROS, RIBBON, SPLITTING

KAIROS_PLUS = "Kairos+"
"""Kairos' matching on the best of all pools under it, where Kairos itself takes its own pick."""

ORACLE = "ORCL"
"""It knows all queries beforehand."""

COLOURS: Mapping[str, str] = dict(zip((KAIROS, SPLITTING, KAIROS_PLUS, CLOCKWORK, DRS, RIBBON), SERIES, strict=False))
