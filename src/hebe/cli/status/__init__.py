"""`hebe status`: how a running server is."""
