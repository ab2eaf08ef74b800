"""Who may come in: listening, tokens, byte budget, refusals."""
