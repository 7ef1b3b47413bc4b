"""What the store does, as functions over an open connection: they take the time, and neither open nor commit."""
