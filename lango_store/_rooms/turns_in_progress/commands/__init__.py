"""The commands of the room."""

from lango_store._rooms.turns_in_progress.commands import owed, turns

__all__ = ["owed", "turns"]
