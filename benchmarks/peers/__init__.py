"""Runs the inference servers that Hebe is measured against, beside Hebe, on one model; see README.md."""
