"""The values that the public API takes and returns, and their presentation. No module here uses a database."""
