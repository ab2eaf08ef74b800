"""`hebe profile`: the best way to run a model on this server."""
