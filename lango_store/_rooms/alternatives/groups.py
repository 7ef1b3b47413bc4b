"""The methods of the room."""

from lango_store._operations.session.sessions import Expected
from lango_store._parts.groups import SessionPart
from lango_store._rooms.alternatives import branching, reading
from lango_store._rooms.alternatives.values import Alternative
from lango_store.errors import Conflict, UniqueViolation, quoted


class InConversation(SessionPart):
    """Adds the members of the room to `Conversation`."""

    def alternatives(self, *, limit: int = reading.MOST) -> list[Alternative]:
        """List the points at which the log branches, with the alternatives that `keep=True` has set aside there.

        Entries with the same `after_seq` are continuations after the same message, in the order in which they began.
        One of them has `is_shown`, unless the log ends with this message: so a page can show "2/3". Alternatives that
        branch off from a message which is set aside itself are not listed, but counted.

        Args:
            limit: The number of alternatives that are set aside, 1 to 1,000. Defaults to 1,000.
        """
        return self._context.read(reading.alternatives, self.key, limit)

    def switch(self, id: int, *, expect: int | None = None) -> bool:
        """Put an alternative in the place of the present end of the log, which becomes an alternative.

        The messages keep their `seq`, ids and turns. The switch is a change of the log, which `versions.undo` does not
        take back: switch again instead. Begun calls of messages that are set aside stay begun; those that wait
        outside are then unknown. Results that wait in the inbox are set aside with their calls; questions there stay.
        Suspensions of these messages are deleted. An answer that was asked for without a message is not owed any more.

        Args:
            id: The `id` of an alternative. If it branches off from another one, the log switches to that one first.
            expect: Switch only if the session's `revision` equals this value.

        Returns:
            True; False if the alternative is in the log already.

        Raises:
            MessageNotFound: The session has no such alternative; nothing was changed.
            TurnInProgress: A turn is in progress; nothing was changed.
            Conflict: The session's `revision` differs from `expect`, or a message of the log has the id of a message
                of the alternative; nothing was changed.
            InvalidCut: A compaction discarded messages before the alternative; nothing was changed.
        """
        try:
            return self._context.transact(branching.switch, self.key, id, Expected(revision=expect))
        except UniqueViolation as error:
            message = f"session {quoted(self.key)}: an id of alternative {id} is the id of a message of the log"
            raise Conflict(self.key, expected=id, last_seq=0, message=message) from error

    def drop_alternative(self, id: int) -> bool:
        """Delete an alternative that is set aside, and those that branch off from it.

        Args:
            id: The `id` of the alternative.

        Returns:
            True if the session had the alternative, otherwise False.
        """
        return self._context.transact(branching.drop, self.key, id)
