"""Figures on disk, tables, plots and HTML pages."""
