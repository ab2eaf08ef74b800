"""A paper's tables and figures, one file a study, run by `hebe study`."""

STUDIES: dict[str, str] = {
    "analytic-error": "hebe.studies.analytic_error",
    "hera-affinity": "hebe.studies.hera_affinity",
    "hera-cluster": "hebe.studies.hera_cluster",
    "hera-emu": "hebe.studies.hera_emu",
    "hera-sensitivity": "hebe.studies.hera_sensitivity",
    "hercules-accelerator": "hebe.studies.hercules_accelerator",
    "hercules-cluster": "hebe.studies.hercules_cluster",
    "hercules-cpu": "hebe.studies.hercules_cpu",
    "hercules-evolution": "hebe.studies.hercules_evolution",
    "hercules-idle": "hebe.studies.hercules_idle",
    "hercules-server": "hebe.studies.hercules_server",
    "hercules-servers": "hebe.studies.hercules_servers",
    "hps-accuracy": "hebe.studies.hps_accuracy",
    "hps-insertion": "hebe.studies.hps_insertion",
    "hps-latency": "hebe.studies.hps_latency",
    "hps-refresh": "hebe.studies.hps_refresh",
    "hps-tiers": "hebe.studies.hps_tiers",
    "hps-warmup": "hebe.studies.hps_warmup",
    "kairos-bounds": "hebe.studies.kairos_bounds",
    "kairos-distribution": "hebe.studies.kairos_distribution",
    "kairos-homogeneous": "hebe.studies.kairos_homogeneous",
    "kairos-robustness": "hebe.studies.kairos_robustness",
    "kairos-search": "hebe.studies.kairos_search",
    "kairos-shift": "hebe.studies.kairos_shift",
}
"""Name -> module of every study (`study.py` says what one is), imported only when it runs."""
