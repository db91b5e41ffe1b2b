"""The HTTP edge: requests and their answers, without a socket."""
