"""`hebe simulate`: servers under a policy and a load, in virtual time."""
