"""Adapters: storage interfaces of agent frameworks, implemented on a `Store`. Each adapter requires its own extra."""
