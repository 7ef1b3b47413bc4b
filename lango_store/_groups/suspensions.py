"""Suspensions, answered from outside the program: `Conversation.suspensions` and `Store.suspensions`."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from lango_store._groups.base import SessionPart, StorePart
from lango_store._operations import suspensions
from lango_store._rows.encoding import encode_id, encode_json
from lango_store._values.model import Suspension
from lango_store._values.reports import SuspensionPage


class Suspensions(SessionPart):
    """The suspensions of a session: `Conversation.suspensions`.

    Attributes:
        key: The session's key.
    """

    __slots__ = ()

    def create(
        self,
        calls: Sequence[tuple[int, int]] = (),
        *,
        state: Any = None,
        reason: str | None = None,
        ttl: timedelta | None = None,
    ) -> Suspension:
        """Store a request for an answer from outside the program, such as an approval.

        `Store.suspensions.answer` stores the answer, and returns the `state` to continue from.

        Args:
            calls: The tool calls that wait for the answer, all of one message: pairs of the message's `seq` and the
                position of the call. Defaults to none.
            state: Any JSON that the program needs to continue, such as the run state of an agent framework.
            reason: The text of the question.
            ttl: How long the suspension can be answered, up to 100 years. Defaults to as long as the session is live.

        Returns:
            The suspension with its `token`. Anyone who has the token can answer. No other method returns the token.

        Raises:
            InvalidValue: `state` or `reason` cannot be stored losslessly; nothing was written.
            CallNotFound: The session has no such call, or the message does not ask for it; nothing was written.
            ValueError: `calls` are calls of several messages, or `ttl` is out of range.

        Example:
            ```python
            suspension = conversation.suspensions.create([(asking.seq, 0)], reason="Pay 40 euros?")
            send_to_approver(suspension.token)
            ```
        """
        new = suspensions.New(self.key, calls, state, reason, ttl)
        return self._context.transact(suspensions.suspend, new)

    def answer_by_id(self, id: str, answer: Any) -> Suspension:
        """Answer a suspension by its id instead of its token; see `Store.suspensions.answer`.

        Args:
            id: The id of the suspension. The id is not secret: backups contain it, for example. So do not accept an id
                from outside as a permission to answer.
            answer: Any JSON.

        Returns:
            The suspension with the answer, its calls and its state, to continue from.

        Raises:
            AlreadyAnswered: The suspension was answered before; `answer` of the exception is that answer.
            SuspensionExpired: The suspension's TTL has passed; nothing was written.
            SuspensionNotFound: The session has no such suspension; nothing was written.
            InvalidValue: The answer cannot be stored losslessly; nothing was written.
        """
        given = str(encode_id(id)), encode_json(answer, "answer")
        return self._context.transact_once(suspensions.resume, self.key, *given)

    def delete(self, id: str) -> bool:
        """Delete a suspension of the session, with its state, reason and answer. Its token then answers nothing.

        Args:
            id: The id of the suspension, answered or not.

        Returns:
            True if the session had this suspension.

        Raises:
            SessionNotFound: There is no such session; nothing was deleted.
        """
        return self._context.transact(suspensions.delete, self.key, str(encode_id(id)))

    def list(self) -> list[Suspension]:
        """List the suspensions of the session, answered or not, the oldest first."""
        return self._context.on_primary().read_together(suspensions.read, self.key)


class StoreSuspensions(StorePart):
    """The suspensions of all sessions: `Store.suspensions`."""

    __slots__ = ()

    def answer(self, token: str, answer: Any) -> Suspension:
        """Answer a suspension. Of several answers, exactly one is stored.

        Args:
            token: The token that `Conversation.suspensions.create` returned.
            answer: Any JSON.

        Returns:
            The suspension with the answer, its calls and its state, to continue from.

        Raises:
            AlreadyAnswered: The suspension was answered before; `answer` of the exception is that answer.
            SuspensionExpired: The suspension's TTL has passed; nothing was written.
            SuspensionNotFound: No suspension of a live session has this token; nothing was written.
            InvalidValue: The answer cannot be stored losslessly; nothing was written.
        """
        given = (*suspensions.parse(token), encode_json(answer, "answer"))
        return self._context.transact_once(suspensions.resume, *given)

    def list(
        self,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        due_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SuspensionPage:
        """List the unanswered suspensions of live sessions, oldest first.

        Args:
            user_id: Only suspensions of sessions of this user.
            agent_id: Only suspensions of sessions of this agent.
            due_before: Only suspensions whose `due_at` is before this time, an aware datetime. None (default) also
                lists suspensions without a `due_at`. In both cases, the `due_at` may have passed already.
            limit: The number of suspensions per page, 1 to 1,000. Defaults to 50.
            cursor: The `next` of the previous page. None (default) reads the first page.

        Raises:
            InvalidCursor: The cursor was not returned by this method.
        """
        which = {"user_id": user_id, "agent_id": agent_id}
        return self._context.on_primary().read_together(suspensions.page, which, due_before, limit, cursor)
