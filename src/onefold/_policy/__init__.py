"""Policies as machines: plain objects that are told the time and answer what to do; they never wait, draw or send."""
