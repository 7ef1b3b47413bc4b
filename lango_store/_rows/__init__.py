"""Column types, and the encoding of values for database drivers."""
