"""The rows of sessions: their state, lists, descendants and expiry."""
