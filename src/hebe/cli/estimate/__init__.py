"""`hebe estimate`: what a server would do, from its data sheet."""
