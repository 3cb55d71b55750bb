"""A connection: its channels, one link after the other, and the way from an address to all this."""
