"""The rooms: features that the core does not know, each in a folder with all of its parts. `composition.py` lists them.

A room may have tables, values, errors, SQL, methods, asynchronous twins and commands. CONTRIBUTING.md describes them.
"""
