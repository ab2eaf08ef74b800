"""`python -m hebe`, the same as `hebe`."""

from hebe.cli.main import main

main()
