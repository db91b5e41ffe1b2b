"""Answer caches before the database: `AsyncOnefold(..., cache=MemoryCache())`."""

from onefold._caches.redis_cache import RedisCache
from onefold._idempotency.cache.memory_cache import MemoryCache

__all__ = ["MemoryCache", "RedisCache"]
