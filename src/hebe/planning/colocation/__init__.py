"""Which models share a server (Hera)."""
