"""Planners and formulas that Hebe is compared with."""
