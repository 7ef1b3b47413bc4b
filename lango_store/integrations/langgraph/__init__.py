"""Checkpoints of LangGraph in a `Store`: `builder.compile(checkpointer=LangoSaver(store))`."""

from lango_store.errors import needs_extra

with needs_extra("langgraph"):
    from lango_store.integrations.langgraph.saver import LangoSaver

__all__ = ["LangoSaver"]
