"""Answer caches on servers of their own."""
