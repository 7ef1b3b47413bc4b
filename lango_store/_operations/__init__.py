"""The store's operations: functions on an open connection. Their caller opens it, passes the time and retries."""
