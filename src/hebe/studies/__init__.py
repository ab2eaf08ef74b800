"""A paper's tables and figures, one file a study, run by `hebe study`."""

STUDIES: dict[str, str] = {
    "hera-affinity": "hebe.studies.hera_affinity",
    "hera-cluster": "hebe.studies.hera_cluster",
    "hera-emu": "hebe.studies.hera_emu",
    "hera-sensitivity": "hebe.studies.hera_sensitivity",
}
"""Name -> module of every study (`study.py` says what one is), imported only when it runs."""
