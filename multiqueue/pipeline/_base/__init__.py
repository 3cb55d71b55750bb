"""The words of the room: items and their states, places and what lies there, errors. Knows no other folder."""
