"""Alternatives: continuations of a session after the same message, of which the log has one.

An alternative is a part of the log that `keep=True` has set aside, with the alternatives that branch off from it. It
belongs to the session, unlike what `keep_removed` keeps: it does not expire, and backups, copies and archives have it.
A message keeps its `seq` and its id while it is set aside.

The first message identifies an alternative, so its id is the same each time it is set aside. `within` is the
alternative that has the branching point, if the log does not have it. A cut below a branching point sets both aside,
or deletes both. While a session has alternatives, its column `alternatives` is not NULL: appends then look for their
ids among the messages that are set aside, and each removal deletes the alternatives that it makes unreachable.
"""
