"""Calls of SQS from asyncio: boto3's client blocks, so each call is made on a thread, and its errors become ours.

Invariant: no text has a credential in it, and no error is chained to one that has. botocore quotes the endpoint, which
may have a password, and AWS answers a wrong signature with the request's headers, the session's token among them: such
errors are distinguished by their names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from onefold._kernel.extras import missing_extra

try:
    import boto3
except ModuleNotFoundError as error:
    raise missing_extra(error, "aws") from None
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError

from onefold.errors import BrokerError, BrokerUnavailable, ConfigurationError, MessageRefused

#: Calls at a time; those that wait for messages have threads of their own.
_THREADS: Final = 8
_MISSING: Final = ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
#: Part of each code by which SQS and KMS say that a right is missing.
_DENIED: Final = "AccessDenied"
#: Errors that every repetition of the same request would get.
_FINAL: Final = frozenset(
    {
        "InvalidMessageContents",
        "InvalidParameterValue",
        "InvalidAttributeValue",
        "InvalidAttributeName",
        "MissingParameter",
        "UnsupportedOperation",
        "BatchRequestTooLong",
        "QueueNameExists",
    }
)


class QueueMissing(BrokerError):
    """The queue of the call is not there."""


class RightMissing(BrokerUnavailable):
    """These credentials may not make the call; no message is at fault, and the right may be given while it waits."""


class SqsCalls:
    """A client of SQS, and the threads that its calls are made on."""

    def __init__(
        self, name: str, *, region: str, endpoint: str | None, confirm_s: float, poll_s: int, session: Any
    ) -> None:
        self._name = name
        self._region = region
        self._endpoint = endpoint
        self._confirm_s = confirm_s
        self._poll_s = poll_s
        self._session = session
        self._client: Any = None
        self._threads: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """Make the client; nothing is sent. One try a call: the relay and the consumer try again by themselves."""
        if self._client is None:
            config = Config(
                connect_timeout=self._confirm_s,
                read_timeout=self._confirm_s + self._poll_s,
                retries={"total_max_attempts": 1},
                max_pool_connections=50,
            )
            try:
                self._client = (self._session or boto3.Session()).client(
                    "sqs", region_name=self._region, endpoint_url=self._endpoint, config=config
                )
            except (BotoCoreError, ValueError):
                # Neither quoted nor chained: an endpoint may have a password.
                raise ConfigurationError(f"{self._name}: boto3 takes neither this region nor this endpoint") from None
            self._threads = ThreadPoolExecutor(_THREADS, "onefold-sqs")

    async def call(self, operation: str, *, on: ThreadPoolExecutor | None = None, **parameters: Any) -> Any:
        """The answer. Raises QueueMissing, RightMissing, MessageRefused where it would be refused again,
        BrokerUnavailable."""
        client, threads = self._client, on or self._threads
        if client is None or threads is None:
            raise self.unavailable("this broker is closed; call open()")
        call = partial(self._call_checked, getattr(client, operation), parameters)
        return await asyncio.get_running_loop().run_in_executor(threads, call)

    async def close(self) -> None:
        client, self._client = self._client, None
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)  # calls that are under way end, and their threads with them
        if client is not None:
            client.close()

    def unavailable(self, reason: object) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self._name}: {reason}")

    def verdict(self, failed: Mapping[str, Any]) -> MessageRefused | BrokerUnavailable:
        """What one entry of a batch has failed with."""
        why = f"{failed.get('Code')}: {failed.get('Message', '')}"
        # SQS takes too many requests, and a right that is missing, for a fault of their sender.
        if failed.get("SenderFault") and not any(each in why for each in ("Throttl", _DENIED)):
            return MessageRefused(f"{self._name}: {why}")
        return self.unavailable(why)

    def _call_checked(self, method: Any, parameters: Mapping[str, Any]) -> Any:
        try:
            return method(**parameters)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            message = f"{self._name}: {error.operation_name} failed: {code}"
            if code in _MISSING:
                raise QueueMissing(message) from None
            # Of these two AWS says which parameter or right it is, after it took the signature: it quotes no header.
            if _DENIED in code:
                raise RightMissing(f"{self._name}: {error}") from error
            if code.rpartition(".")[2] in _FINAL:
                raise MessageRefused(f"{self._name}: {error}") from error
            raise BrokerUnavailable(message) from None
        except NoCredentialsError as error:
            raise ConfigurationError(
                f"{self._name}: boto3 finds no credentials: set AWS_PROFILE, give the process a role, or give "
                "session=boto3.Session(...)"
            ) from error
        except ParamValidationError as error:
            raise MessageRefused(f"{self._name}: {error}") from error
        except (BotoCoreError, OSError) as error:
            raise self.unavailable(type(error).__name__) from None
