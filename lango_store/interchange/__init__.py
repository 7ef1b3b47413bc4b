"""The files of other systems, in and out: one module a system, each between its files and a `Draft`."""
