"""Purges of many sessions, and archives, which are databases with purged sessions.

The path of a purge

`Store.expire` creates a `PurgePolicy` (`batches.py`). `purge` in `purging.py` runs one transaction for each batch: it
chooses and locks the sessions, copies them to the archive (`archiving.py`), and deletes their rows of `lango_session`.
Foreign keys (`session_reference`) delete the rows of all other tables. The archive commits before the store. If a
foreign key of another table blocks a batch, its sessions are purged one at a time; the report lists those that cannot
be deleted.
"""
