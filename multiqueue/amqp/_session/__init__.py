"""A channel over a virtual host, for sockets and for links in the process: methods and contents in, effects out."""

from . import calls as calls  # for the methods that they register
