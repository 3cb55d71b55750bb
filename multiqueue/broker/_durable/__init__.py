"""A virtual host's side of its store: handing in, and recovery when it is opened."""
