"""The ledger of tool calls, and suspensions that wait for an answer."""
