"""Answer caches before the database: `AsyncOnefold(..., cache=MemoryCache())`."""

from onefold._idempotency.cache.memory_cache import MemoryCache

__all__ = ["MemoryCache"]
