"""Calls of the store that take more than one operation: appends that may be repeated, purges, searches."""
