"""`hebe model`: list, make, train, import and measure models."""
