"""The log of a session: appends, reads, edits, turns, and the payloads and copies that belong to it."""
