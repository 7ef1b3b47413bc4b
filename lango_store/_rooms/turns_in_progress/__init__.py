"""Turns with a lease, drafts of their answers, and the inbox."""
