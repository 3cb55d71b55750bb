"""Bounded memory: which messages are in memory, and what is read and written when. Knows `_queue/queue`."""
