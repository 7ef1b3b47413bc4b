"""Google ADK's sessions in a `Store`: give `LangoSessionService(store)` to its `Runner`."""

from lango_store.integrations.google_adk.service import LangoSessionService, StaleSessionError

__all__ = ["LangoSessionService", "StaleSessionError"]
