"""The state: which items there are and what became of each, in SQLite or PostgreSQL."""
