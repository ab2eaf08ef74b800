"""Which query goes to which server (Kairos)."""
