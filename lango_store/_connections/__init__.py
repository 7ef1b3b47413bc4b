"""The connection of an operation: providers, transactions, retries, replicas, threads and the schema check."""
