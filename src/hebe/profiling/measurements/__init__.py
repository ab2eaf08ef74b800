"""Single measurements: times of ops, batches and queries."""
