"""Where embedding rows live and how a query reaches them (HPS)."""
