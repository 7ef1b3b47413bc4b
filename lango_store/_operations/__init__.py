"""The store's operations: functions over an open connection. They take the time and never open, commit or retry."""
