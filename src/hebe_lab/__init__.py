"""Studies, benchmarks and the baselines that only they use."""
