"""How one server is split into workers, cores and batches (Hercules)."""
