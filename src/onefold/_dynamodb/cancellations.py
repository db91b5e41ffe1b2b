"""What DynamoDB's errors mean: which are the key's, which the application's own conditions, and which pass by
themselves.

A transaction that is cancelled has written nothing, and has a reason for each action, in their order.

boto3 sends again by itself, and shows the last error only: a throttle of the second send says nothing of the first,
which may have been written and its answer lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from onefold._kernel.extras import missing_extra

try:
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError
except ModuleNotFoundError as error:
    raise missing_extra(error, "aws") from None

from onefold._dynamodb.item_values import read_item
from onefold.errors import (
    ConfigurationError,
    OnefoldError,
    OutcomeUnknown,
    ProgrammerError,
    SchemaMissing,
    StatementRefused,
    StoreBusy,
    StoreUnavailable,
)

R = TypeVar("R")

CONDITION_FAILED: Final = "ConditionalCheckFailed"
#: Reasons that pass: nothing was written, and the same call may be made again.
_PASSING: Final = frozenset(
    {"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded", "RequestLimitExceeded"}
)
_BUSY: Final = frozenset(
    {
        "ThrottlingException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "TransactionConflictException",
        "ReplicatedWriteConflictException",
    }
)
_REFUSED: Final = frozenset(
    {"ValidationException", "ItemCollectionSizeLimitExceededException", "SerializationException"}
)


class ItemRefused(StatementRefused):
    """A condition of the application's own does not hold. Nothing of the transaction was written: the key is free.
    `detail` says which."""

    def __init__(self, detail: str, *, index: int, item: Mapping[str, Any] | None) -> None:
        super().__init__(detail)
        self.index = index
        """Which of `items` it was."""
        self.item = item
        """What was found there, where the action asked for it (ReturnValuesOnConditionCheckFailure)."""


class KeyTaken(Exception):
    """The key has a record already: `item`."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        super().__init__("the key has a record")
        self.item = item


def call_dynamodb(call: Callable[[], R], what: str, *, writes: bool) -> R:
    """Call DynamoDB, and translate its errors. `writes`: if the answer is lost, the outcome is unknown."""
    try:
        return call()
    except ClientError as error:
        raise _translate(error, what, writes=writes) from error
    except NoCredentialsError as error:
        raise ConfigurationError(
            f"{what}: boto3 finds no credentials: set AWS_PROFILE, give the process a role, or give a client"
        ) from error
    except ParamValidationError as error:
        raise ProgrammerError(f"{what}: {error}") from error
    except (BotoCoreError, OSError) as error:
        kind = OutcomeUnknown if writes else StoreUnavailable
        raise kind(f"{what}: DynamoDB did not answer: {error}") from error


def _translate(error: ClientError, what: str, *, writes: bool) -> OnefoldError:
    response: Mapping[str, Any] = error.response
    code = str(response.get("Error", {}).get("Code", ""))
    text = f"{what}: {error}"
    if code == "ResourceNotFoundException":
        return SchemaMissing(
            f"{text}. Is the table there, in this region? DynamoTable(...).create() makes onefold's own"
        )
    if code in _REFUSED:
        return StatementRefused(text)
    if writes and not _was_not_written(response, code):
        return OutcomeUnknown(f"{text}; an earlier send of it may have been written")
    if code in _BUSY:
        return StoreBusy(text)
    return StoreUnavailable(text)


def _was_not_written(response: Mapping[str, Any], code: str) -> bool:
    """Whether DynamoDB has turned away the only send. Its 5xx leave that open, and so does a transaction in progress,
    which is an earlier send of the same call."""
    sent = response.get("ResponseMetadata", {})
    return (
        code not in ("TransactionInProgressException", "InternalServerError")
        and sent.get("RetryAttempts") == 0
        and int(sent.get("HTTPStatusCode", 500)) < 500
    )


def was_answered(unknown: OutcomeUnknown) -> bool:
    """Whether DynamoDB answers, so that the outcome of the call can be looked up."""
    return isinstance(unknown.__cause__, ClientError)


def judge_cancelled(reasons: Sequence[Mapping[str, Any]], what: str) -> OnefoldError | KeyTaken:
    """The error of a transaction that was cancelled. The key comes first: what has a record is not run, whatever else
    stood against it."""
    if reasons and reasons[0].get("Code") == CONDITION_FAILED:
        return KeyTaken(reasons[0].get("Item", {}))
    codes = [str(reason.get("Code")) for reason in reasons if reason.get("Code") not in (None, "None")]
    texts = "; ".join(str(reason.get("Message")) for reason in reasons if reason.get("Message"))
    message = f"{what}: cancelled by DynamoDB ({', '.join(codes)}): {texts}"
    if reasons and reasons[0].get("Code") in _PASSING:
        # Whether the key has a record was not looked at: another call of it may be what the items' conditions met.
        return StoreBusy(message)
    for index, reason in enumerate(reasons[1:]):
        if reason.get("Code") == CONDITION_FAILED:
            return ItemRefused(
                f"{what}: the condition of items[{index}] does not hold; nothing was written",
                index=index,
                item=read_item(reason["Item"]) if reason.get("Item") else None,
            )
    return StoreBusy(message) if codes and set(codes) <= _PASSING else StatementRefused(message)
