"""Calls that combine several operations: appends with retry, creating and purging sessions, searches, the doctor."""
