"""A paper's tables and figures, one file a study, run by `hebe study`."""

STUDIES: dict[str, str] = {
    "analytic-error": "hebe_lab.studies.analytic_error",
    "hera-affinity": "hebe_lab.studies.hera.affinity",
    "hera-cluster": "hebe_lab.studies.hera.cluster",
    "hera-emu": "hebe_lab.studies.hera.emu",
    "hera-sensitivity": "hebe_lab.studies.hera.sensitivity",
    "hercules-accelerator": "hebe_lab.studies.hercules.accelerator",
    "hercules-cluster": "hebe_lab.studies.hercules.cluster",
    "hercules-cpu": "hebe_lab.studies.hercules.cpu",
    "hercules-evolution": "hebe_lab.studies.hercules.evolution",
    "hercules-idle": "hebe_lab.studies.hercules.idle",
    "hercules-server": "hebe_lab.studies.hercules.server",
    "hercules-servers": "hebe_lab.studies.hercules.servers",
    "hps-accuracy": "hebe_lab.studies.hps.accuracy",
    "hps-insertion": "hebe_lab.studies.hps.insertion",
    "hps-latency": "hebe_lab.studies.hps.latency",
    "hps-refresh": "hebe_lab.studies.hps.refresh",
    "hps-tiers": "hebe_lab.studies.hps.tiers",
    "hps-warmup": "hebe_lab.studies.hps.warmup",
    "kairos-bounds": "hebe_lab.studies.kairos.bounds",
    "kairos-distribution": "hebe_lab.studies.kairos.distribution",
    "kairos-homogeneous": "hebe_lab.studies.kairos.homogeneous",
    "kairos-robustness": "hebe_lab.studies.kairos.robustness",
    "kairos-search": "hebe_lab.studies.kairos.search",
    "kairos-shift": "hebe_lab.studies.kairos.shift",
}
"""Name -> module of every study (`study.py` says what one is), imported only when it runs."""
