"""The errors of the room."""

from datetime import datetime

from lango_store.errors.core import LangoStoreError, quoted


class NotKept(LangoStoreError):
    """An undo, or a read of an earlier log, needs messages that are not kept.

    A cut, edit or compaction by a store without `keep_removed=` removed or replaced them, or the time of
    `keep_removed=` has passed. Open the store with `keep_removed=` to keep what later changes remove or replace.

    Attributes:
        key: The key of the session.
        seq: The `seq` of the change that removed or replaced the messages.
    """

    def __init__(self, key: str, seq: int, until: datetime | None = None) -> None:
        kept = "were not kept" if until is None else f"were kept until {until:%Y-%m-%d %H:%M:%S} UTC"
        self._fact = f"session {quoted(key)}: the messages that change {seq} removed {kept}"
        advice = "open the store with keep_removed= to keep the messages that later changes remove"
        super().__init__(f"{self._fact}: {advice}")
        self.key = key
        self.seq = seq
