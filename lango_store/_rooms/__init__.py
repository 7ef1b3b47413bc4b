"""The rooms: features that the core does not know, each in a folder or a module with all of its parts.

A room may have tables, values, errors, SQL, methods, asynchronous twins and commands. CONTRIBUTING.md describes them.
"""

from typing import Final

ROOMS: Final = {
    "turns_in_progress": (),
    "tail": ("turns_in_progress",),
    "tool_calls": ("turns_in_progress",),
    "prompts": ("tool_calls",),
    "usage": (),
    "expiry": (),
    "versions": ("expiry",),
    "forks": ("versions",),
    "stats": ("usage",),
    "examination": ("stats",),
    "search": (),
    "documents": (),
    "payloads": (),
    "distribution": (),
}
"""The rooms, each with the rooms that it builds on. It imports no other room."""
