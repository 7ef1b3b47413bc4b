"""Stores for the sessions of one user."""
