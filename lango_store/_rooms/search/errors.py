"""The errors of the room."""

from lango_store.errors.core import LangoStoreError


class SearchUnavailable(LangoStoreError):
    """The store cannot be searched: the search index is missing, incomplete or damaged.

    The text names the command to run: `lango-store search enable` or `lango-store search rebuild`. All methods except
    searches work without the index.
    """
