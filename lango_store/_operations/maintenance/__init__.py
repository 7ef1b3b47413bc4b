"""Whole stores: transfers, checks, statistics and the search index."""
