"""The exceptions of the room."""

from lango_store.errors.core import LangoStoreError


class InstructionsChanged(LangoStoreError, ValueError):
    """The instructions or the tools of a request differ from those of the session's last request."""
