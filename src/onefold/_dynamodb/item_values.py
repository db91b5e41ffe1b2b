"""Items as DynamoDB takes them, and their sizes as it counts them: the limits are checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from onefold._kernel.extras import missing_extra

try:
    from boto3.dynamodb.types import Binary, TypeDeserializer, TypeSerializer
except ModuleNotFoundError as error:
    raise missing_extra(error, "aws") from None

from onefold.errors import ProgrammerError

_DIGITS_MAX: Final = 38
ITEMS_MAX: Final = 100
ITEM_BYTES_MAX: Final = 409_600
TRANSACTION_BYTES_MAX: Final = 4_194_304
_ACTIONS: Final = ("Put", "Update", "Delete", "ConditionCheck")

_serializer: Final = TypeSerializer()
_deserializer: Final = TypeDeserializer()


def write_item(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Plain values as attribute values. `what` names them in errors."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            found[name] = _serializer.serialize(value)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ProgrammerError(
                f"{what} has {name}={value!r}, which DynamoDB does not take: {error} (a number with a fraction is a "
                "Decimal, and a number has at most 38 digits)"
            ) from error
    return found


def read_item(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(_deserializer.deserialize(value)) for name, value in item.items()}


def check_action(index: int, item: Mapping[str, Any]) -> None:
    """Refuse what is no action of TransactWriteItems."""
    if len(item) != 1 or next(iter(item)) not in _ACTIONS or "TableName" not in next(iter(item.values())):
        raise ProgrammerError(
            f"items[{index}] is {dict(item)!r}: it must be one of {', '.join(_ACTIONS)} with its TableName, as in "
            "{'Put': {'TableName': 'orders', 'Item': {'id': '42'}}}"
        )


def write_action(index: int, item: Mapping[str, Any]) -> dict[str, Any]:
    """An action with plain values in its Item, its Key and its ExpressionAttributeValues."""
    check_action(index, item)
    ((action, given),) = item.items()
    written = {
        name: write_item(value, f"items[{index}]") if name in ("Item", "Key", "ExpressionAttributeValues") else value
        for name, value in given.items()
    }
    return {action: written}


def check_sizes(actions: Sequence[Mapping[str, Any]], what: str) -> None:
    """DynamoDB takes 100 actions, 400 KB for an item and 4 MB for all."""
    if len(actions) > ITEMS_MAX:
        raise ProgrammerError(
            f"{what} writes {len(actions)} items with its key and its events; DynamoDB takes {ITEMS_MAX} in one "
            "transaction: publish fewer events, or one that names them all"
        )
    sizes = [size_of({"M": next(iter(action.values())).get("Item", {})}) for action in actions]
    if max(sizes) > ITEM_BYTES_MAX:
        raise ProgrammerError(
            f"{what} writes an item of {max(sizes)} bytes (number {sizes.index(max(sizes))} of its transaction, the "
            f"key's is 0); DynamoDB takes {ITEM_BYTES_MAX}: store what is large elsewhere, and its place here"
        )
    if sum(sizes) > TRANSACTION_BYTES_MAX:
        raise ProgrammerError(
            f"{what} writes {sum(sizes)} bytes; DynamoDB takes {TRANSACTION_BYTES_MAX} in one transaction"
        )


def size_of(value: Mapping[str, Any]) -> int:
    """About what DynamoDB counts: names and values; a number at its longest."""
    ((kind, held),) = value.items()
    match kind:
        case "S":
            return len(held.encode())
        case "B":
            return len(held)
        case "N":
            return min(len(held) // 2 + 2, 21)
        case "SS":
            return sum(len(each.encode()) for each in held)
        case "BS":
            return sum(map(len, held))
        case "NS":
            return 21 * len(held)
        case "L":
            return 3 + sum(1 + size_of(each) for each in held)
        case "M":
            return 3 + sum(len(name.encode()) + 1 + size_of(each) for name, each in held.items())
        case _:
            return 1


def _plain(value: Any) -> Any:
    """boto3 has a class of its own for bytes."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | set):
        return type(value)(map(_plain, value))
    is_bytes = isinstance(value, Binary)
    return value.value if is_bytes else value


def compare_by_value(value: Any) -> Any:
    """A request with the numbers of its Decimals, which boto3 reads every number as: 5000, Decimal(5000) and
    Decimal("5000.0") are one. What no number of JSON holds exactly stays a Decimal, without the zeros at its end."""
    if isinstance(value, dict):
        return {name: compare_by_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [compare_by_value(each) for each in value]
    if not isinstance(value, Decimal) or not value.is_finite() or abs(value.adjusted()) > _DIGITS_MAX:
        return value
    if value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else Decimal(f"{value:f}".rstrip("0"))
