"""Engines and their connection pools: from a database URL to a connection with the settings the store relies on."""
