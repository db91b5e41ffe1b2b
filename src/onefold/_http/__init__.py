"""The HTTP edge: what a request asks for and what it is told, without a socket."""
