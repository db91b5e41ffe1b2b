"""Postgres statements whose every function, operator and type is the one of pg_catalog, whatever the search path says.

Postgres looks names up in all schemas of the search path and takes what fits the types best. Who may create in one of
them (`public`, for many) could offer a better fit for `numeric * integer`, and would have it called by us, with our
rights. So a statement is qualified when it is made: `a = b` becomes `a OPERATOR(pg_catalog.=) b`, `now()` becomes
`pg_catalog.now()`. Tables are not: where ours are is found out by the driver (see `db/_postgres_session.py`).

All qualified operators have one precedence and group to the left. A text that would mean something else then is refused
here, when its module is imported, and so is whatever hides a lookup that cannot be qualified (`IS DISTINCT FROM`).

A subquery behind IN that has a LIMIT or locks its rows becomes an array, which is computed once. Postgres may make a
join of the subquery and run it again for each row that it compares; each time it then passes over the rows that the
statement has changed, takes others instead, and the statement changes more rows than its LIMIT says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from onefold.errors import ProgrammerError

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<text>'(?:[^']|'')*')
  | (?P<value>\$\d+)
  | (?P<number>\d+(?:\.\d+)?)
  | (?P<cast>::)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<operator>[-+*/<>=~!@\#%^&|]+)
  | (?P<other>[()\[\],.{}"])
    """,
    re.VERBOSE,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Written as names, not as keywords: a schema in front of pg_catalog could have others.
_TYPES: Final = frozenset({"bytea", "json", "text", "timestamptz"})

#: The functions of pg_catalog that onefold calls. (extract, position, coalesce ... are grammar: nothing is looked up.)
FUNCTIONS: Final = _words(
    """
    array_agg ceil clock_timestamp count current_database current_setting decode generate_series
    json_array_elements_text json_each_text json_to_recordset max min now octet_length pg_advisory_xact_lock pg_notify
    pg_table_is_visible pg_try_advisory_xact_lock row_number set_config split_part substr sum to_char
    to_regclass to_timestamp unnest width_bucket
    """
)

#: May stand in front of a bracket without being called.
_BEFORE_BRACKET: Final = _words(
    """
    all and any array as by check coalesce conflict distinct else exists extract filter from greatest in join key
    lateral least limit not on or over position returning select then unique values when where with
    """
)

#: Columns follow, not arguments, where one of these stands in front of the name.
_BEFORE_TABLE: Final = frozenset({"as", "into", "on", "table"})

#: An expression ends before these.
_ENDS: Final = _words(
    """
    and as asc by cross desc else filter for from group in is join left limit not offset on or order over returning
    select set then union values when where window with
    """
)

_UNLOOKED: Final = frozenset({"between", "ilike", "like", "nullif", "similar"})

_TIGHTNESS: Final = {"*": 4, "/": 4, "%": 4, "+": 3, "-": 3}
_COMPARISONS: Final = frozenset({"=", "<>", "!=", "<", ">", "<=", ">="})


@dataclass(slots=True)
class _Bracket:
    """Between two brackets (or CASE and END), what has been read so far."""

    opener: str
    """The name in front of the bracket."""
    last: str | None = None
    """The operator that this expression had last."""
    assigns: bool = False
    """The next `=` assigns: `SET a = 1, b = 2`."""
    in_set: bool = False
    closing: str = ")"
    """What ends it: a list or a subquery behind IN may become an array."""


@lru_cache(maxsize=1000)
def qualified(sql: str) -> str:
    """The statement, with pg_catalog in front of all it looks up but tables."""
    reader = _Reader(sql)
    position = 0
    while position < len(sql):
        found = _TOKEN.match(sql, position)
        if found is None:
            raise ProgrammerError(f"cannot read {sql[position : position + 20]!r} in the statement {sql!r}")
        reader.read(found.lastgroup or "", found.group(), sql[found.end() :])
        position = found.end()
    return "".join(reader.written)


@dataclass(slots=True)
class _Reader:
    sql: str
    written: list[str] = field(default_factory=list)
    levels: list[_Bracket] = field(default_factory=lambda: [_Bracket("")])
    before: str = ""
    """The token before, in lower case and without space."""
    closing: str = ")"
    """What ends the bracket that comes next."""

    def read(self, kind: str, token: str, rest: str) -> None:
        if kind == "space":
            self.written.append(token)
            return
        level = self.levels[-1]
        match kind:
            case "name":
                token = self._name(token, level, rest)
            case "operator":
                token = self._operator(token, level)
            case "other":
                token = self._bracket(token, level)
            case _:
                pass
        self.written.append(token)
        self.before = token.lower()

    def _name(self, token: str, level: _Bracket, rest: str) -> str:
        word = token.lower()
        follows = rest.lstrip()
        called = follows.startswith("(")
        if self.before == ".":
            return token
        if word in _UNLOOKED or (word == "distinct" and self.before in ("is", "not")):
            raise self._refusal(f"{token} looks an operator up that cannot be qualified")
        if word == "case":
            if not re.match(r"when\b", follows, re.IGNORECASE):
                raise self._refusal("CASE must be followed by WHEN: else it compares by an operator it looks up")
            self.levels.append(_Bracket("case"))
        elif word == "end":
            self.levels.pop()
        elif word == "in" and called and level.opener != "position":
            return self._in(level, follows)
        elif word in _ENDS:
            level.last = None
            if word in ("set", "from", "where", "returning"):
                level.in_set = level.assigns = word == "set"
        elif word in _TYPES or word.startswith("pg_") or (called and word in FUNCTIONS):
            return f"pg_catalog.{token}"
        elif called and word not in _BEFORE_BRACKET and self.before not in _BEFORE_TABLE:
            raise self._refusal(f"{token} is not among the functions of pg_catalog that are known to be called")
        return token

    def _in(self, level: _Bracket, follows: str) -> str:
        if self.before == "not":
            raise self._refusal("NOT IN looks an operator up that cannot be qualified")
        self._note("=", level)
        is_subquery = re.match(r"\(\s*select\b", follows, re.IGNORECASE)
        if is_subquery and not _is_bounded(follows):
            return "OPERATOR(pg_catalog.=) ANY"
        self.closing = "))" if is_subquery else "])"
        return "OPERATOR(pg_catalog.=) ANY (ARRAY"

    def _operator(self, token: str, level: _Bracket) -> str:
        if token == "*" and self.before in ("(", ".", ",", "select"):
            return token
        if token == "=" and level.assigns:
            level.assigns = False
            return token
        if token == "=" and level.opener == "with":
            return token  # a storage parameter: WITH (fillfactor = 70)
        if self.before in _ENDS or self.before in ("", "(", ","):
            raise self._refusal(f"{token} has nothing on its left")
        self._note(token, level)
        return f"OPERATOR(pg_catalog.{token})"

    def _note(self, token: str, level: _Bracket) -> None:
        if level.last is not None and _tightness(level.last) < max(_tightness(token), 2):
            raise self._refusal(f"{token} follows {level.last}: put brackets around what belongs together")
        level.last = token

    def _bracket(self, token: str, level: _Bracket) -> str:
        match token:
            case "(":
                closing, self.closing = self.closing, ")"
                self.levels.append(_Bracket(self.before, closing=closing))
                return "[" if closing == "])" else token
            case ")":
                return self.levels.pop().closing
            case ",":
                level.last = None
                level.assigns = level.in_set
            case _:
                pass
        return token

    def _refusal(self, problem: str) -> ProgrammerError:
        return ProgrammerError(f"{problem}, in the statement {' '.join(self.sql.split())!r}")


def _is_bounded(text: str) -> bool:
    """Whether the subquery in the bracket that the text begins with has a LIMIT, or locks what it finds."""
    depth = 0
    for found in _TOKEN.finditer(text):
        depth += {"(": 1, ")": -1}.get(found.group(), 0)
        if depth == 0:
            break
        if found.lastgroup == "name" and found.group().lower() in ("limit", "for"):
            return True
    return False


def _tightness(operator: str) -> int:
    """How tightly an operator binds where it is not qualified."""
    return 1 if operator in _COMPARISONS else _TIGHTNESS.get(operator, 2)
