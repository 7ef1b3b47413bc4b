"""The commands of the room."""

from lango_store._rooms.tool_calls.commands import calls, suspensions

__all__ = ["calls", "suspensions"]
