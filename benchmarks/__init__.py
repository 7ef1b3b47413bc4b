"""How far the store is from a loop written by hand over the driver: `python -m benchmarks --help`."""
