"""Versions of a log: edits of single messages, undo and redo, earlier logs, and copies of removed rows.

The path of an undo

Each function that removes or replaces rows does so in the block of a `LogChange` (`_operations/log/changes.py`). At the
end of the block, the change stores its row, corrects the session's counters, and deletes calls, suspensions and
payloads that no message needs. Before it removes or replaces rows, the change passes them to the `Recorder` of the
transaction, if it has one. The recorder of a store with `keep_removed` is a `Keeper` (`kept_copies.py`). It copies the
rows to `lango_removed_message` and `lango_removed_turn`, except for redactions and `edits.drop_sent`. The copy of a row
also has two numbers: `removed_at`, the `seq` of the change that removed or replaced the row, and `next_at`, the `seq`
of the change that stored the row's next version. They are equal after an edit, and differ if the row was removed and
restored later. A version is valid from the `next_at` of the preceding copy, or from the row's `seq` if no copy precedes
it, until its own `removed_at`. So the log at any `seq` is one query (`read` in `earlier_logs.py`).

`undo` chooses the last change that is not itself an undo and was not taken back. It copies and deletes the rows that
this change added, and inserts the rows that it removed. The undo is stored as a change with copies, so `redo` takes
back the last undo in the same way. A load detects a change between its two statements by counters: appends increase
`last_seq` and the number of messages equally, and a change increases `last_seq` by more. An undo increases the number
of messages by those that it restores, so it uses up as many seqs and one more. `purge` (`kept_copies.py`) deletes
copies after the `undo_until` of their change, unless a later change still needs them.
"""
