"""Stores of conversations under faults: processes write, read and fail, and a checker judges the history.

`adapter` is the interface of a store. `worker` is a process that uses one, and `driver` starts the
processes, makes them fail and keeps the order of their steps. `checker` reads only the logs of the
processes. `mutants` are faults of lango_store that the checker has to find.
"""
