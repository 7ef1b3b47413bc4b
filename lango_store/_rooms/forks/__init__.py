"""Forks, which copy a session to another key, and child sessions, which belong to a session."""
