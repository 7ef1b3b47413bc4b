"""The store against a hand-written loop over the driver: `python -m benchmarks --help`."""
