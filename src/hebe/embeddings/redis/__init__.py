"""Rows in Redis: connections, commands, the volatile store."""
