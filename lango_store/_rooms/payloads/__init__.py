"""Moves of large strings between the rows of stored messages and payloads."""
