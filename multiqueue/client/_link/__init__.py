"""One life of a connection: over a socket, or to a broker in this process."""
