"""Archives of purged sessions: SQLite files with a table for people and full-text search, written before a purge."""

from lango_store.archive.archive import Archive

__all__ = ["Archive"]
