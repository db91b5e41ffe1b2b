"""requests: reading the beginning of an answer, and handing it on unread.

Invariant: a reader of the response, or of `response.raw` under it, gets the bytes of the wire from the first to the
last, packed or unpacked as it asks. So they are read packed, and urllib3 reads them again from here.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from onefold._client.outgoing_request import SHORT_BYTES_MAX, STREAM_ADVICE, UNSIZED_BYTES_MAX


def can_be_resumed(response: Any) -> bool:
    """It comes from urllib3, as nearly all do; an adapter of the user's own may bring something else."""
    return isinstance(response.raw, sys.modules["urllib3"].HTTPResponse)


def read_start(response: Any) -> bytes | None:
    """Read a short answer to its end, and put it back: the body, packed. None: it is longer, and is left to arrive."""
    raw: Any = response.raw
    urllib3: Any = sys.modules["urllib3"].exceptions
    vendor: Any = sys.modules["requests"].exceptions
    # One iterator from the beginning to the end: urllib3 loses its place in a chunk where another takes over.
    arriving: Iterator[bytes] = raw.stream(8192, decode_content=False)
    start, whole = b"", True
    try:
        for piece in arriving:
            start += piece
            if len(start) > UNSIZED_BYTES_MAX:
                whole = False
                break
    except urllib3.ReadTimeoutError as error:
        late: Exception = vendor.ConnectionError(error)  # so the vendor calls it, once the answer has begun
        late.add_note(STREAM_ADVICE)
        raise late from error
    except urllib3.HTTPError as error:
        raise vendor.ChunkedEncodingError(error) from error
    response.raw = _resume(raw, response.request.method, _Arriving(start, arriving, raw))
    return start if whole else None


def unpack_body(response: Any, body: bytes) -> bytes | None:
    """A body without its content coding, up to a limit; None: it is broken, or in an unknown coding."""
    raw = _resume(response.raw, response.request.method, io.BytesIO(body))
    try:
        found: bytes = raw.read(SHORT_BYTES_MAX, decode_content=True)
    except sys.modules["urllib3"].exceptions.HTTPError:
        return None
    return found


class _Arriving:
    """The bytes of a body, as urllib3 reads them: what was read already, and then what is still to come."""

    def __init__(self, start: bytes, rest: Iterator[bytes], raw: Any) -> None:
        self._piece = io.BytesIO(start)
        self._rest = rest
        self._raw = raw
        self.closed = False

    def read(self, count: int | None = None) -> bytes:
        if count is None or count < 0:
            found = b"".join([self._piece.read(), *self._rest])
            self.closed = True  # as http.client does at the end of a body
            return found
        parts, missing = [], count
        while missing > 0 and (part := self.read1(missing)):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def read1(self, count: int | None = None) -> bytes:
        """What there is, which may be less; b"" at the end."""
        found = self._piece.read(count)
        if not found:
            self._piece = io.BytesIO(next(self._rest, b""))
            found = self._piece.read(count)
            self.closed = not found
        return found

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._raw.close()  # where some of it was not read, its connection is closed with it

    def release_conn(self) -> None:
        self._raw.release_conn()


def _resume(raw: Any, method: str | None, body: Any) -> Any:
    return _response_class(sys.modules["urllib3"])(
        body=body,
        headers=raw.headers,
        status=raw.status,
        version=raw.version,
        reason=raw.reason,
        preload_content=False,
        decode_content=raw.decode_content,
        original_response=raw._original_response,  # requests takes the cookies from it
        msg=raw.msg,
        retries=raw.retries,
        enforce_content_length=raw.enforce_content_length,
        request_method=method,
        request_url=raw.geturl(),
    )


@cache
def _response_class(urllib3: Any) -> Any:
    return type("ResumedResponse", (_ResumedResponse, urllib3.HTTPResponse), {})


class _ResumedResponse:
    _fp: Any
    read1: Any

    def release_conn(self) -> None:
        if isinstance(self._fp, _Arriving):
            self._fp.release_conn()

    def supports_chunked_reads(self) -> bool:
        return hasattr(self, "read1")  # without it (urllib3 before 2.1) pieces are of the size that is asked for

    def read_chunked(self, amt: int | None = None, decode_content: bool | None = None) -> Iterator[bytes]:
        """What came in chunks is handed on as it arrives."""
        while piece := self.read1(amt, decode_content=decode_content):
            yield piece
