"""Adoption of sessions from the databases of agent frameworks.

`adopting` writes sessions and reports them; `source` opens the databases. Each other module reads the tables of one
framework. A source whose mapping needs its framework imports the adapter in `lango_store.integrations` when it is used.
"""
