"""The ledger of tool calls, and suspensions that wait for an answer.

The path of a tool call

1. `begin` of `effects.py` creates a random token and calls `begin` of `calls.py`. That function locks the session's
   row, and in a turn extends the lease. If the call has no row in `lango_call`, it inserts one with the token, a random
   `effect_key`, and the time until which the call may run. If the call has a row, it returns the stored result. Without
   a result, it raises `CallInProgress` or `CallUnknown`, unless the call may run again.
2. The tool runs outside of any transaction.
3. `finish` appends the tool message and sets `result_seq` of the row in one transaction, if the row still has the
   token. It does not need the lease, because the result of a slow tool must not be lost.

As with leases, the token alone decides which process may finish the call. `until` only decides when a call is unknown.

`answer` (`suspensions.py`) first updates the session's row, so that a turn is owed, and then updates the row of
`lango_suspension` if no answer is stored and its `due_at` has not passed. If several processes answer, only one of them
changes this row; the transactions of the others are rolled back.
"""
