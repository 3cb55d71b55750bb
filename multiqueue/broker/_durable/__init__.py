"""A virtual host's side of its store: what is handed in, and what comes back when it is opened."""
