"""The errors of the room."""

from lango_store.errors.core import NotFound


class ShareNotFound(NotFound):
    """No share of a live session has this token, or its time has passed.

    The error does not say which of them, so that a token tells nothing about a session that it does not open.
    """
