"""Tables in memory: resident rows, huge pages, rows of the model's files."""
