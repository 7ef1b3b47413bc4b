"""Readers that follow a session while it is written, also in browsers."""
