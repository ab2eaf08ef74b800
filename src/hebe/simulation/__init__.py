"""Modelled servers in virtual time, driven by the very scheduling objects of the live server. Runs without torch."""
