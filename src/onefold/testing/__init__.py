"""What onefold's own tests stand on, for the tests of those who use it.

- `servers`: private PostgreSQL servers, real ones, that can be killed and leave nothing behind.
- `proxy`: a TCP proxy that loses, delays and cuts what passes through it, on command.
"""
