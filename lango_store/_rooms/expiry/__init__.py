"""Purges of many sessions, and archives, which are databases with purged sessions."""
