"""The methods of the room."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from lango_store._operations import derived_data
from lango_store._operations.session.sessions import Expected
from lango_store._parts.groups import SessionPart, session_group
from lango_store._rooms.versions import earlier_logs, edits, edits_of_many, redaction, undo
from lango_store._rooms.versions.values import Change, Diff, Undone
from lango_store._values.model import Message
from lango_store.errors import InvalidMessage, UniqueViolation, quoted


class Edits(SessionPart):
    """The edits of a session's log: `Conversation.edits`.

    Attributes:
        key: The session's key.
    """

    def update(self, seq_or_id: int | str, message: Message, *, expect: int | None = None) -> Message:
        """Replace a message of the log.

        The new message gets the `seq` and the turn of the old one. It also gets the old `id` and `created_at`, unless
        you set them. If the id changes, the old id can be stored again, so a late retry of the old append would store
        the old message again.

        Args:
            seq_or_id: The `seq` (an int) or the `id` (text) of the message to replace.
            message: The new message.
            expect: Replace the message only if the session's `revision` equals this value.

        Returns:
            The new message, with its `seq` and `created_at`.

        Raises:
            MessageNotFound: The session has no such message; nothing was changed.
            InvalidMessage: The message cannot be stored losslessly, another message has its `id`, its tool calls differ
                although one of the old calls was begun, or a message of a summary would become a record; nothing was
                changed.
            Conflict: The session's `revision` differs from `expect`; nothing was changed.
        """
        message = self._context.counted(message)
        try:
            expected, threshold = Expected(revision=expect), self._context.payload_threshold
            return self._context.transact(edits.update, self.key, seq_or_id, message, expected, threshold)
        except UniqueViolation as error:
            reason = f"{quoted(message.id)} is the id of another message: give another, or None to keep the old one"
            raise InvalidMessage("id", reason) from error

    def update_all(self, messages: Sequence[Message], *, expect: int | None = None) -> list[Message]:
        """Replace several messages of the log in one change.

        Each message replaces the stored one with the same `seq`, as `update` does. `versions.undo` takes back the whole
        change. The number of SQL statements does not depend on the number of messages.

        Args:
            messages: The new messages, each with the `seq` of the message that it replaces: usually copies of stored
                messages. With an empty list, nothing is done.
            expect: Replace the messages only if the session's `revision` equals this value.

        Returns:
            The new messages, in the order of their `seq`.

        Raises:
            MessageNotFound: The session has no message with one of these seqs; nothing was changed.
            InvalidMessage: One of the messages cannot be stored, as in `update`; nothing was changed.
            Conflict: The session's `revision` differs from `expect`; nothing was changed.
            ValueError: Two messages have the same `seq`; nothing was changed.
        """
        if not messages:
            return []
        new = [self._context.counted(message) for message in messages]
        try:
            expected, threshold = Expected(revision=expect), self._context.payload_threshold
            return self._context.transact(edits_of_many.update_all, self.key, new, expected, threshold)
        except UniqueViolation as error:
            raise InvalidMessage("id", "is the id of another message: give another, or None to keep it") from error

    def delete_all(self, seqs: Sequence[int], *, expect: int | None = None) -> None:
        """Delete several messages anywhere in the log in one change.

        Each message is deleted as by `delete`. `versions.undo` takes back the whole change. The number of SQL
        statements depends only on the number of summaries that lose all their messages.

        Args:
            seqs: The `seq` of each message to delete. With an empty list, nothing is done.
            expect: Delete the messages only if the session's `revision` equals this value.

        Raises:
            MessageNotFound: The session has no message with one of these seqs; nothing was deleted.
            Conflict: The session's `revision` differs from `expect`; nothing was deleted.
        """
        if seqs:
            self._context.transact_once(edits_of_many.delete_all, self.key, seqs, Expected(revision=expect))

    def delete(self, seq_or_id: int | str, *, expect: int | None = None) -> None:
        """Delete a message anywhere in the log.

        The usage of the message's turn does not change, and summaries that cover the message stay. Deleting the only
        remaining message of a summary has the same effect as in `Conversation.pop_message`. The message's `id` can be
        stored again.

        Args:
            seq_or_id: The `seq` (an int) or the `id` (text) of the message to delete.
            expect: Delete the message only if the session's `revision` equals this value.

        Raises:
            MessageNotFound: The session has no such message; nothing was deleted.
            Conflict: The session's `revision` differs from `expect`; nothing was deleted.
        """
        self._context.transact_once(edits.delete, self.key, seq_or_id, Expected(revision=expect))

    def redact(
        self,
        seq_or_id: int | str,
        *,
        reason: str | None = None,
        archive: str | Path | None = None,
        replace: Callable[[str], str] | None = None,
    ) -> Message:
        """Remove the content, `sent`, the tool calls and `extra` of a message.

        Its `seq`, role, names, id and times stay, and its `tokens` become 0. The content becomes the text `(redacted)`,
        because providers refuse a prompt with an empty message; the content of a record becomes None. Copies in forks,
        summaries, backups and archives stay, except in `archive`.

        A store with `keep_removed` also keeps earlier versions of messages, and removed messages. The earlier versions
        are redacted too, and a removed message can be redacted. Suspensions that name calls of the message lose their
        state, reason and answer.

        Args:
            seq_or_id: The `seq` (an int) or the `id` (text) of the message to redact. An id also redacts removed
                messages that had it.
            reason: A reason to store in the message's `extra`, as `redacted`.
            archive: An archive in which to redact the message too, as in `Store.restore`. If the store has the message,
                only the archived copy of the same session is redacted. If it has not, the message is redacted only in
                the archive, in the session that has this key there.
            replace: Keep the content, `sent`, the tool calls, `extra` and `tokens`, but replace each text in them by
                the value of this function. If the texts of the message do not change, nothing is redacted; otherwise
                the earlier versions are redacted as a whole. By default, all texts are removed.

        Returns:
            The redacted message.

        Raises:
            SessionNotFound: The store has no such session, and the archive has no such message; nothing was changed.
            MessageNotFound: The session in the store has no such message, and neither has the archive; nothing was
                changed.
            InvalidFile: `archive` does not exist, or is a SQLite database of another application; nothing was changed.
        """
        message = redaction.redact(self._context, self.key, seq_or_id, reason, archive, replace)
        derived_data.clean(self._context)
        return message

    def _find(self, archive: str | Path | None, replace: Callable[[str], str]) -> list[int]:
        """Return the seqs of the messages that `redact` with these arguments changes."""
        return redaction.find(self._context, self.key, archive, replace)

    def drop_sent(self, *, before: int) -> int:
        """Delete the `sent` of earlier messages, so that prompts use their `content` again.

        Args:
            before: All messages of the log with a lower `seq` lose their `sent`.

        Returns:
            The number of messages that had a `sent`.
        """
        return self._context.transact_once(edits.drop_sent, self.key, before)


class Versions(SessionPart):
    """The versions of a session's log: `Conversation.versions`. `Conversation.get(as_of=…)` loads an earlier one.

    Attributes:
        key: The session's key.
    """

    def changes(self, *, after: int = 0) -> list[Change]:
        """List the changes of the log, oldest first: cuts, edits, compactions, undos and redos.

        Args:
            after: Only changes with a `seq` above this value. Defaults to 0, all changes.
        """
        return self._context.read_together(earlier_logs.changes, self.key, after)

    def undo(self) -> Undone | None:
        """Take back the last cut, edit, replacement (`replace_after`) or compaction.

        A second `undo` takes back the change before that, and so on; `redo` reverses the last undo. Messages that were
        appended after the change stay. Redactions and `drop_sent` are never taken back. Begun calls and suspensions
        that the change deleted are not restored, so a tool of a restored message may run again.

        Returns:
            The change that was taken back, and the numbers of restored and removed messages; None if there is no such
            change.

        Raises:
            NotKept: The messages that the change removed or replaced are not kept: see `Store(keep_removed=…)`. Nothing
                was written.
            Conflict: The id of a removed message or turn was used again; nothing was written.
        """
        return self._context.transact_once(undo.undo, self.key)

    def redo(self) -> Undone | None:
        """Take back the last undo, unless another change followed it.

        Returns:
            The undo that was taken back, and the numbers of restored and removed messages; None if there is no such
            undo.

        Raises:
            NotKept: The messages that the undo removed are no longer kept; nothing was written.
            Conflict: The id of a removed message or turn was used again; nothing was written.
        """
        return self._context.transact_once(undo.redo, self.key)

    def diff(self, a: int | datetime, b: int | datetime) -> Diff:
        """Compare the logs of two moments.

        Args:
            a: The first moment: a `seq`, or an aware datetime, as `as_of` in `Conversation.get`.
            b: The second moment, which may be earlier.

        Raises:
            NotKept: There was a cut, edit or compaction since the earlier moment, and what it removed or replaced is
                not kept.
        """
        return self._context.read_together(earlier_logs.diff, self.key, a, b)


class InConversation(SessionPart):
    """Adds the members of the room to `Conversation`."""

    edits = session_group(Edits)
    """The edits of the log: change, delete and redact messages."""
    versions = session_group(Versions)
    """The versions of the log: list changes and take them back."""

    def pop_message(self, *, records: bool = False) -> Message | None:
        """Remove the last message of the window, and return it.

        If this removes the only remaining message of a summary, the messages that the summary replaced are in the
        window again, unless the compaction discarded them.

        Args:
            records: Remove the last entry of the log, even if it is a record. By default records are skipped.

        Returns:
            The removed message, or None if there is none.
        """
        return self._context.transact_once(edits.pop, self.key, records=records)
