"""Whole stores: transfers, checks and statistics."""
