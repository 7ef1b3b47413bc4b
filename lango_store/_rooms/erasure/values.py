"""The receipt of an erasure."""

import hashlib
from datetime import datetime

from pydantic import Field

from lango_store._values.value import Value, absent

Rows = dict[str, dict[str, int]]
"""Numbers of rows by database and table. The databases are "store", "archive 1", "archive 2" and so on."""


class ErasureReceipt(Value):
    """The result of an erasure, or of a dry run. Keep its JSON as evidence: only reasons of holds can be personal data.

    Attributes:
        at: The time at which the erasure began, in UTC.
        seconds: The duration in seconds.
        dry_run: True for a dry run, which changes nothing.
        erased: The numbers of deleted rows by database and table. The databases are `"store"`, `"archive 1"`,
            `"archive 2"` and so on, in the order of the argument `archives`.
        redacted: The numbers of rows that were redacted in the sessions of other users, by database and table.
        held: The sessions that were not erased: each key with the reason. A dry run lists only holds. Keys can be
            personal data, so JSON leaves this field out.
        reasons: The number of sessions that were not erased, by reason: the name of a foreign key of another table (on
            SQLite, the text of the error), or "hold: " and the reason of the hold.
        remaining: The number of sessions of the person that exist at the end and are not in `held`. They were created
            during the erasure: repeat it.
        remains: What the erasure cannot remove, such as dead rows that PostgreSQL has not vacuumed, and how to proceed.
        salt: A random text that is part of each of the `digests`.
        digests: With `digests=True`, the digests of the erased sessions. `erase(receipt=…)` finds these sessions in a
            restored backup.
    """

    at: datetime | None = None
    seconds: float = 0.0
    dry_run: bool = False
    erased: Rows = Field(default_factory=dict)
    redacted: Rows = Field(default_factory=dict, exclude_if=absent)
    held: dict[str, str] = Field(default_factory=dict, exclude=True)
    reasons: dict[str, int] = Field(default_factory=dict, exclude_if=absent)
    remaining: int = 0
    remains: list[str] = Field(default_factory=list)
    salt: str | None = Field(default=None, exclude_if=absent)
    digests: list[str] = Field(default_factory=list, exclude_if=absent)

    @property
    def complete(self) -> bool:
        """True if no session of the person was held or created during the erasure."""
        return not self.reasons and not self.remaining

    def digest(self, key: str, created_at: datetime) -> str:
        """Return the digest of a session: a later session with the same key has another one."""
        return hashlib.sha256(f"{self.salt}\n{key}\n{created_at.isoformat()}".encode()).hexdigest()
