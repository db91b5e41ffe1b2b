"""A bounded memory of keys this process has seen. A hint, never an answer: being wrong costs one statement."""

from __future__ import annotations


class Recent:
    """The last `size` digests at least, and at most twice as many."""

    __slots__ = ("_newer", "_older", "_size")

    def __init__(self, size: int = 8_192) -> None:
        self._size = size
        # Two generations: forgetting the older one whole costs nothing, picking the oldest of a dict is a search.
        self._newer: set[bytes] = set()
        self._older: set[bytes] = set()

    def add(self, digest: bytes) -> None:
        self._newer.add(digest)
        if len(self._newer) >= self._size:  # two threads at once may forget one generation too many: just as good
            self._newer, self._older = set(), self._newer

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._newer or digest in self._older
