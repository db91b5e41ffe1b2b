"""onefold's table of webhook endpoints, as a numbered migration per dialect. A number, once released, never changes.

`topics` is a JSON array; `*` is every topic. `failures` counts requests that failed since the last that did not, and
`failing_since_ms` is when that began. Nothing is sent to an endpoint with a `disabled_at_ms`.
"""

from __future__ import annotations

_COLUMNS = """
    name              text    NOT NULL PRIMARY KEY,
    url               text    NOT NULL,
    topics            text    NOT NULL,
    secret            text,
    failures          integer NOT NULL DEFAULT 0,
    failing_since_ms  bigint,
    last_error        text,
    disabled_at_ms    bigint
"""

POSTGRES: dict[int, tuple[str, ...]] = {8: (f"CREATE TABLE onefold_endpoint ({_COLUMNS})",)}

SQLITE: dict[int, tuple[str, ...]] = {8: (f"CREATE TABLE onefold_endpoint ({_COLUMNS})",)}

MIGRATIONS = {"postgres": POSTGRES, "sqlite": SQLITE}
