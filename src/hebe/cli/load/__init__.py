"""`hebe load`: send queries to a server."""
