"""Sessions for Google ADK in a `Store`: `Runner(…, session_service=LangoSessionService(store))`."""

from lango_store.errors import needs_extra

with needs_extra("google-adk"):
    from lango_store.integrations.google_adk.service import LangoSessionService, StaleSessionError

__all__ = ["LangoSessionService", "StaleSessionError"]
