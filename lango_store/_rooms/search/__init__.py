"""Full-text search, with an index that is created on request."""
