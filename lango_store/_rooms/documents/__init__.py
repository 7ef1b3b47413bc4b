"""Sessions as HTML documents."""
