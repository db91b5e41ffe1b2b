"""Every row of the contract has a test in all four backends; and the check that says so can say no."""

from __future__ import annotations

import inspect

import pytest

from onefold import AsyncOnefold, Onefold
from tests.contract.completeness import Claims, claims_of, contract_tests, shortcomings
from tests.contract.rows import ALL, ASGI, ROWS, WSGI, Row


def test_every_row_has_a_test_in_every_backend() -> None:
    assert not shortcomings(ROWS, [claims_of(test) for test in contract_tests()])


@pytest.mark.parametrize(
    ("row", "claim", "finding"),
    [
        (Row("stays"), Claims(("C01",), ASGI), "C01 has no test in wsgi-sqlite: stays"),
        (Row("stays"), Claims(("C01", "C99"), ALL), "C99 is claimed by a test but is not a row"),
        (Row("stays", {"asgi-sqlite": " "}), Claims(("C01",), WSGI), "C01 is absent from asgi-sqlite without a reason"),
        (
            Row("stays", {"asgi-sqlite": "no socket"}),
            Claims(("C01",), ALL),
            "C01 has a test in asgi-sqlite, which the table calls impossible",
        ),
    ],
)
def test_a_gap_in_the_table_is_found(row: Row, claim: Claims, finding: str) -> None:
    assert finding in shortcomings({"C01": row}, [claim])


def test_a_row_that_is_tested_or_absent_with_a_reason_is_no_gap() -> None:
    rows = {"C01": Row("stays"), "C02": Row("goes", dict.fromkeys(ASGI, "no socket"))}
    assert not shortcomings(rows, [Claims(("C01",), ALL), Claims(("C02",), WSGI)])


def test_both_faces_have_the_same_methods_with_the_same_signatures() -> None:
    def methods_of(kind: type) -> dict[str, inspect.Signature]:
        members = inspect.getmembers(kind, inspect.isfunction)
        found = {name: inspect.signature(member) for name, member in members if name[0] != "_" or name == "__init__"}
        # What a method gives may be awaited or entered with `async with`: that is the one difference.
        return {name: signature.replace(return_annotation="") for name, signature in found.items()}

    assert methods_of(Onefold) == methods_of(AsyncOnefold)
    kept = {"idempotent", "install", "asgi", "wsgi", "migrate", "reap", "reaping", "close"}
    assert kept <= methods_of(Onefold).keys()
