"""Portable rows: the stored rows of sessions, to copy them to other databases and to files.

`portable` decodes rows and validates them before they are stored elsewhere; `transfer` reads and inserts them.
"""
