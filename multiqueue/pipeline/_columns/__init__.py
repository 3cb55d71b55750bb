"""Columns: expected, known from earlier items, and how those of a table may grow."""
