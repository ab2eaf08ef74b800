"""A paper's tables and figures, one file a study, run by `hebe study`."""

STUDIES: dict[str, str] = {}
"""Name -> module of every study (`study.py` says what one is), imported only when it runs."""
