"""The commands of the room."""

from lango_store._rooms.usage.commands import report

__all__ = ["report"]
