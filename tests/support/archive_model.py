"""A model of an archive, as a list of sessions."""

import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from support.session_model import ModelSession


@dataclass
class ModelArchive:
    """The archived sessions in order; an archived session replaces an earlier copy of the same session.

    A session that is deleted and created again under the same key begins another life, with a copy of its own.
    """

    lives: list[ModelSession] = field(default_factory=list)

    def add(self, session: ModelSession) -> None:
        self.lives = [each for each in self.lives if not each.is_life_of(session)] + [copy.deepcopy(session)]

    def latest(self, key: str) -> ModelSession | None:
        return next((each for each in reversed(self.lives) if each.key == key), None)

    def restored(self, now: datetime, key: str, ttl: timedelta | None) -> ModelSession | None:
        """Return the latest archived life of a session, with `ttl` as its new TTL, as `restore` does."""
        session = copy.deepcopy(self.latest(key))
        if session is not None:
            session.ttl = ttl
            session.slide(now)
        return session

    def redact_copy(self, session: ModelSession, seq: int, reason: str) -> None:
        """Redact the message of a session in the archived copy of the same life, if there is one."""
        for each in self.lives:
            if each.is_life_of(session) and each.find(seq):
                each.redact_message(seq, reason)
