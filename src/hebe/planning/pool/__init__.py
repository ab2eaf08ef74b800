"""Which pool of unlike servers a budget buys (Kairos)."""
