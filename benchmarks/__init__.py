"""Compare the store with hand-written code over the driver: `python -m benchmarks --help`."""
