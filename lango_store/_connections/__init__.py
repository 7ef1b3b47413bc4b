"""Connections for operations: from the pool or the caller, to primary or replica, with retries and schema checks."""
