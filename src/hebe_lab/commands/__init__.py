"""`hebe study`, `hebe bench` and `hebe figures`."""
