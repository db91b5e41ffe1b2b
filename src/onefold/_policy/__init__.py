"""Policies as machines: plain objects that take the time and return what to do; they never wait, draw or send."""
