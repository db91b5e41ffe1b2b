"""A consumer's end of SQS: messages are fetched by requests that wait for them, and belong to this process until their
visibility time-out is over.

Invariant: what a request has brought is handed out, given back or left to its time-out; a `receive` that is cancelled,
or ends before the request does, leaves the request to the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from onefold._kernel.messages import Delivery
from onefold.brokers._sqs_calls import QueueMissing, SqsCalls
from onefold.brokers._sqs_entries import delivery_of
from onefold.errors import BrokerError, BrokerUnavailable, ConfigurationError, MessageRefused

_BATCH: Final = 10


class SqsSubscription:
    """The queue of a consumer. Made by `SqsBroker.subscribe`."""

    def __init__(
        self, calls: SqsCalls, url: str, make_again: Callable[[], Awaitable[Any]], *, lease_s: int, poll_s: int
    ) -> None:
        """`make_again` makes the queue where it was deleted."""
        self._calls = calls
        self._make_again = make_again
        self._url = url
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._buffer: deque[tuple[float, Delivery]] = deque()
        self._unsettled: dict[str, None] = {}
        self._request: asyncio.Task[None] | None = None
        self._is_more = False
        # Its own: one that waits for messages must not keep acknowledgements from their thread.
        self._thread = ThreadPoolExecutor(1, "onefold-sqs-poll")
        self.is_closed = False

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait_s
        while True:
            fresh_since = time.monotonic() - self._lease_s / 2
            while self._buffer and self._buffer[0][0] < fresh_since:
                self._buffer.popleft()  # its time-out is near: it comes again
            left = deadline - time.monotonic()
            if not self._buffer and left > 0:
                await self._wait_for_request(self._poll_s, left)
            elif 0 < len(self._buffer) < limit and self._is_more and self._request is None:
                await self._wait_for_request(0, None)
            else:
                break
        found = [self._buffer.popleft()[1] for _ in range(min(limit, len(self._buffer)))]
        self._unsettled.update((delivery.receipt.handle, None) for delivery in found)
        return found

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        await self._settle("delete_message_batch", [delivery.receipt.handle for delivery in deliveries])

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        await self._settle(
            "change_message_visibility_batch", [delivery.receipt.handle for delivery in deliveries], VisibilityTimeout=0
        )

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        await self._batches(
            "change_message_visibility_batch",
            [delivery.receipt.handle for delivery in deliveries],
            VisibilityTimeout=self._lease_s,
        )

    async def close(self) -> None:
        """Waits for the request that waits for messages, `poll_s` at most: what it brings is given back."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._request is not None:
            with suppress(BrokerError):
                await self._request
        left = [*self._unsettled, *(delivery.receipt.handle for _, delivery in self._buffer)]
        self._unsettled.clear()
        self._buffer.clear()
        with suppress(BrokerError, ConfigurationError):
            await self._batches("change_message_visibility_batch", left, VisibilityTimeout=0)
        self._thread.shutdown(wait=False)  # its last call has been awaited

    async def _wait_for_request(self, waiting_s: int, wait_s: float | None) -> None:
        """For the request that is under way, or for a new one, which may wait at SQS for `waiting_s`."""
        if self.is_closed:
            raise BrokerUnavailable("this subscription is closed")
        if self._request is None:
            self._request = asyncio.create_task(self._fetch(waiting_s))
        request = self._request
        await asyncio.wait([request], timeout=wait_s)
        if request.done() and self._request is request:
            self._request = None
            request.result()

    async def _fetch(self, waiting_s: int) -> None:
        try:
            answer = await self._calls.call(
                "receive_message",
                on=self._thread,
                QueueUrl=self._url,
                MaxNumberOfMessages=_BATCH,
                WaitTimeSeconds=waiting_s,
                VisibilityTimeout=self._lease_s,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        except QueueMissing as error:
            try:
                await self._make_again()
            except (BrokerError, ConfigurationError) as why:  # SQS makes none of the same name within a minute
                raise BrokerUnavailable(f"the queue is gone, and making it is tried again: {why}") from why
            raise BrokerUnavailable(f"the queue was gone, and is made again: {error}") from error
        except (MessageRefused, ConfigurationError) as error:  # it was right at the start
            raise BrokerUnavailable(str(error)) from error
        now = time.monotonic()
        found = answer.get("Messages", ())
        self._buffer.extend((now, delivery_of(each, self._url.rpartition("/")[2])) for each in found)
        self._is_more = len(found) == _BATCH

    async def _settle(self, operation: str, handles: Sequence[str], **parameters: Any) -> None:
        for handle in handles:
            self._unsettled.pop(handle, None)  # what does not arrive comes again, and is no longer ours
        await self._batches(operation, handles, **parameters)

    async def _batches(self, operation: str, handles: Sequence[str], **parameters: Any) -> None:
        """Ten at a time. A receipt that is refused is one whose time-out is over: the message comes again, and there is
        nothing to settle; what SQS itself failed at is raised."""
        calls = [
            self._calls.call(
                operation,
                QueueUrl=self._url,
                Entries=[
                    {"Id": str(index), "ReceiptHandle": handle, **parameters}
                    for index, handle in enumerate(handles[start : start + _BATCH])
                ],
            )
            for start in range(0, len(handles), _BATCH)
        ]
        for answer in await asyncio.gather(*calls):
            for failed in answer.get("Failed", ()):
                if isinstance(error := self._calls.verdict(failed), BrokerUnavailable):
                    raise error
