"""Versions of a log: edits of single messages, undo and redo, earlier logs, and copies of removed rows."""
