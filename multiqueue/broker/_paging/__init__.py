"""Bounded memory: which messages are in memory, and when others are read and written. Knows `_queue/queue`."""
