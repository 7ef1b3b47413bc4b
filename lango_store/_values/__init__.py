"""Pure values: what the public API takes and returns, and how they are shown. No module here knows a database."""
