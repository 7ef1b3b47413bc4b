"""Totals of a store: `Store.stats`, and metrics for Prometheus."""
