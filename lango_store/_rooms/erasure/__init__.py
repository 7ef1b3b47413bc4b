"""The requests of a person: erase everything that belongs to a user, or export it.

`person.py` finds the rows of a person; `erasing.py` and `exporting.py` both use it, so that one erases what the other
exports. Sessions are deleted in the batches of a purge, and foreign keys delete their rows in all other tables.
`authors.py` redacts what the person wrote in the sessions of other users. `traces.py` removes what is left in the files
of the database, and describes what no statement can remove.
"""
