"""Which queries are sent, and when."""
