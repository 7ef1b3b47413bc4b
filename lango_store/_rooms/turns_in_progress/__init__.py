"""Turns with a lease, drafts of their answers, and the inbox.

The path of a turn in progress

1. `Conversation.turn` returns a `RunningTurn` (`running_turn.py`) with a random token.
2. Entering the block calls `begin` (`running.py`). An update writes the token, the id of the turn and the end of the
   lease into the session's row, if no other lease is running and the turn is not stored yet. If the application chose
   the id, `begin` then looks for the turn, which another process may have stored while the update waited, and for
   messages of earlier attempts. A stored turn is replayed without a lease. If the turn is not stored and no row was
   updated, `begin` raises `TurnInProgress`.
3. An append in the block is an ordinary append with a `Guard` (`_operations/session/guards.py`), the `Lease` of the
   turn (`leases.py`). It adds a condition: the session's row still has the token. The same statement extends the lease,
   and writes the id of the turn into `taken_by` of the message. So the end of the turn and the streams of front ends
   also find the messages that other code has appended with a store of `in_turn`.
4. `write` collects pieces. `flush` stores them in `lango_draft` without waiting for the disk, and extends the lease.
5. Leaving the block calls `finish`, which releases the lease, stores the turn, assigns the messages to it and deletes
   its drafts. On PostgreSQL this is one statement. If another writer committed while the statement waited for the lock
   of the session's row, the statement changes nothing, because it does not see the new rows. It also changes nothing if
   a message of the turn has payloads. Then, and always on SQLite and Citus, `finish` runs several statements in
   `Dialect.short_transaction`. After an exception, `abandon` releases the lease and stores the rest of the draft.

The token alone decides which turn has the lease. `lease_until` only decides when another process may replace the token.
So a wrong clock can end a lease too early, but the turn that lost its lease can no longer write.

The path of an owed turn

1. `inbox.put`, the answer of a suspension and the beginning of a turn set `owed_at` of the session's row. The end of
   the turn clears it, unless something has arrived since. Each statement computes this from the locked row alone
   (`owed.py`), so a message that is committed while the end of a turn waits for the lock stays owed.
2. `Worker.step` (`working.py`) asks with one statement whether a turn is due. If so, `claim` (`claims.py`) takes the
   leases of as many sessions as there are free handlers. It skips sessions whose rows other workers have locked. If the
   worker runs nothing else, the same update counts the attempt, so an attempt that kills its process counts, and a turn
   with too many attempts is given up. A lease that has ended with its token still stored belongs to a process that
   died: such a turn is claimed only by a worker that runs nothing else, and that claims nothing else until the turn has
   ended.
3. The turn begins with the claimed lease, and takes the inbox. The handler gets a conversation of `Store.in_turn`.
4. Between its polls, the worker extends the leases of the running turns.
5. After the handler, the turn is saved. After an error, `postpone` (`leases.py`) releases the lease, and sets `owed_at`
   to the time of the next attempt. The turn's id stays in `lease_turn`, so that the next attempt finds the messages of
   this one.

If another turn begins before the next attempt, a bit of `waiting` notes that an earlier turn took messages, and a
second one whether it was given up. The end of that other turn finds the earlier one by `taken_by` of its messages, and
puts its id into `lease_turn` again.

The tests of workers are `turns_in_progress/test_work.py`, `turns_in_progress/test_owed_turns.py`,
`turns_in_progress/test_work_after_deaths.py`, `concurrency/test_workers.py` and, with processes that are killed and
frozen, `concurrency/test_killed_workers.py`. The random steps of `turns_in_progress/test_turns_machine.py` compare owed
turns with a model.

Writes of `Store.in_turn` compare the token: an append in its own statement, any other write by an update at the
beginning of its transaction (`Context.transaction`), which keeps the session locked until the end.
"""
