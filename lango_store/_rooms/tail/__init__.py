"""Readers that follow a session while it is written, also in browsers.

The path of an event

A reader (`following.py`) reads the events after its cursor from the database, page by page, until it has read all
stored events. Then it joins the channel of its session in the `Watcher` (`watcher.py`).

While readers wait, the thread of the watcher reads the states of all followed sessions with one statement. It does so
soon after each write of this store. Otherwise the pauses between these statements grow with the time since the last
event, from 20 ms to one second. If the state of a session has changed, the watcher reads the new events in one snapshot
(`reading.py`). It stores these events in memory as a batch, with the cursor at which they begin, and wakes the readers.
A reader takes the batch that begins at its own cursor, or reads from the database if there is none. The next batch of a
reader depends on its cursor alone, so no event is skipped or repeated when readers join, fall behind or reconnect.
"""
