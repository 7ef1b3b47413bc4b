"""Our own backups: every column of every row as JSON lines, and copies from one database into another."""
