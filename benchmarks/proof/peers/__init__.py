"""Adapters of other stores. Each uses its store as the store's documentation does."""
