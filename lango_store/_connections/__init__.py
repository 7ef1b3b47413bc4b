"""How an operation gets its connection: providers, transactions, retries, replicas, threads and the schema check."""
