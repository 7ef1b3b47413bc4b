"""Readers that follow a session while it is written."""
