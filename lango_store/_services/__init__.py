"""Each service function is one call of the store that needs several operations, transactions or retries."""
