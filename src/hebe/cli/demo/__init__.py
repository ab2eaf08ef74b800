"""`hebe demo`: train, serve and load a small model."""
