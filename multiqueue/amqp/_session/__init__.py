"""A channel over a virtual host: methods and content in, effects out."""
