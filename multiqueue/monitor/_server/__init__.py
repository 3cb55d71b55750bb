"""One request from the socket to the answer; the page; a pipeline's run on it."""
