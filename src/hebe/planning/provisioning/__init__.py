"""How many servers of which kind each model gets over the day (Hercules)."""
