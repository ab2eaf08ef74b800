"""Servers from data sheets."""
