"""Online updates: from trainers, through a log that keeps their order, into the stores (HPS 6)."""
