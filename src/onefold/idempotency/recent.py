"""A bounded memory of keys this process has seen done. A hint, never an answer: being wrong costs one read."""

from __future__ import annotations


class Recent:
    """The last `size` digests, oldest forgotten first."""

    __slots__ = ("_digests", "_size")

    def __init__(self, size: int = 16_384) -> None:
        self._size = size
        self._digests: dict[bytes, None] = {}

    def add(self, digest: bytes) -> None:
        self._digests[digest] = None
        if len(self._digests) > self._size:
            # Another thread may be doing the same: forgetting one more, or none, is just as good.
            oldest = next(iter(self._digests), None)
            if oldest is not None:
                self._digests.pop(oldest, None)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests
