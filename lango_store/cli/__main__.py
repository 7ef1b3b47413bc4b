"""`python -m lango_store.cli` is `lango-store`."""

from lango_store.cli import main

main()
