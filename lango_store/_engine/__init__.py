"""Database URLs, engines, and connection pools with the settings that the store needs."""
