"""The rules of the tree as functions: each takes a file as text and yields what is wrong with it.

Only `project_files` and `text_of` touch the disk, so every rule can be shown a planted violation.
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

PURE_FLOORS = frozenset({"_kernel", "_policy", "_idempotency", "_outbox", "_inbox", "_steps", "_saga", "errors"})
BELOW_THE_EDGE = PURE_FLOORS - {"errors"}
EDGE_OF_THE_KERNEL = frozenset(
    {"_kernel/clock.py", "_kernel/ids.py", "_kernel/executors.py", "_kernel/public_drivers.py"}
)
FOREIGN_BUT_ALLOWED = {
    "_idempotency/encryption.py": frozenset({"cryptography"}),
    # FastAPI needs the session's type when it reads the dependency.
    "_http/fastapi_sessions.py": frozenset({"sqlalchemy"}),
    # DBOS keeps its journal by SQLAlchemy, and takes the user's database as one of its engines.
    **{
        f"_engines/dbos/{name}.py": frozenset({"sqlalchemy"})
        for name in ("dbos_engine", "executor_locks", "saga_context", "saga_database", "takeover")
    },
}

DRIVERS = frozenset(
    {
        "aiomysql",
        "aiosqlite",
        "asyncmy",
        "asyncpg",
        "mysql",
        "psycopg",
        "psycopg_pool",
        "pymysql",
        "sqlalchemy",
    }
)
RUNS_WHAT_IT_READS = frozenset({"cloudpickle", "dill", "marshal", "pickle", "shelve"})
SAYS_NOTHING = frozenset({"base", "common", "core", "manager", "managers", "util", "utils"})

# What a flow or a machine is handed instead of reaching for it.
AMBIENT = {
    "asyncio.sleep": "await an effect",
    "datetime.date.today": "take the time as an argument",
    "datetime.datetime.now": "take the time as an argument",
    "datetime.datetime.today": "take the time as an argument",
    "datetime.datetime.utcnow": "take the time as an argument",
    "os.environ": "take the setting as an argument",
    "os.getenv": "take the setting as an argument",
    "random": "take a function that returns the random number",
    "time.monotonic": "take the time as an argument",
    "time.monotonic_ns": "take the time as an argument",
    "time.sleep": "await an effect",
    "time.time": "take the time as an argument",
    "time.time_ns": "take the time as an argument",
    "uuid.uuid1": "take the id as an argument",
    "uuid.uuid4": "take the id as an argument",
}

# Written in pieces, so that this file is not its own first finding.
MACHINE_PATH = re.compile("(^|[^A-Za-z0-9_.])/(" + "work|farm|root" + ")/")
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
SILENCER = re.compile(r"\bnoqa\b|\btype:\s*ignore|\bmypy:|\bpyright:", re.IGNORECASE)

NOT_OURS = frozenset({"__pycache__", "build", "dist", "htmlcov"})


@functools.cache
def parse(path: str, text: str) -> ast.Module:
    """Once for all the rules, which only look at it: to parse the package takes longer than a rule. Whoever has asked
    for all of the rules empties the cache."""
    return ast.parse(text, filename=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file as the rules see it: `path` counts from the package for its modules, else from the root."""

    path: str
    text: str

    @property
    def floor(self) -> str:
        return PurePosixPath(self.path).parts[0].removesuffix(".py")

    def tree(self) -> ast.Module:
        return parse(self.path, self.text)

    def finding(self, line: int, message: str) -> Finding:
        return Finding(path=self.path, line=line, message=message)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """One broken rule: where it is, and the way out."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


# Words

#: Who is meant? A thread, a task, a process, a client, a user: the reader has to know.
_RIDDLE = re.compile(r"\b(?:nobody|somebody|anybody|whoever|who knows)\b", re.IGNORECASE)
#: The account of that name.
_USER = re.compile(r"(?:user |`|\"|^\s+|\()(nobody)\b")


def riddles(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        found = _RIDDLE.search(line)
        if found is not None and "nobody" not in _USER.findall(line):
            yield source.finding(number, f"{found.group()!r}: name the thread, task, process, client or user")


# Size


def long_file(source: Source) -> Iterator[Finding]:
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield source.finding(1, f"{lines} lines, at most {FILE_LINES_MAX}: split it along what it does")


def long_functions(source: Source) -> Iterator[Finding]:
    for node in ast.walk(source.tree()):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                message = f"{node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}: name its parts"
                yield source.finding(node.lineno, message)


# Words


def nameless_module(source: Source) -> Iterator[Finding]:
    for part in PurePosixPath(source.path).with_suffix("").parts:
        if part.strip("_") in SAYS_NOTHING:
            yield source.finding(1, f"'{part}' says nothing: name it after what it holds")


def silent_module(source: Source) -> Iterator[Finding]:
    tree = source.tree()
    if tree.body and not ast.get_docstring(tree):
        yield source.finding(1, "no docstring: open with one sentence of purpose and the invariant")


def silent_names(exported: Mapping[str, object]) -> Iterator[str]:
    """The exported classes and functions without a docstring of their own."""
    for name, value in exported.items():
        if inspect.isclass(value) or inspect.isroutine(value):
            written = (value.__doc__ or "").strip()
            # A dataclass or named tuple without a docstring is given its signature as one.
            if not written or written.startswith(f"{value.__name__}("):
                yield name


def repeated_classes(sources: Iterable[Source], allowed: Mapping[str, str]) -> Iterator[Finding]:
    """Classes of one name in several modules, with or without an underscore; and names in `allowed` that need it no
    more."""
    homes: dict[str, list[tuple[Source, int]]] = {}
    for source in sources:
        for node in source.tree().body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append((source, node.lineno))
    for name, places in homes.items():
        if len(places) > 1 and name not in allowed:
            first, (source, line) = places[0][0].path, places[-1]
            yield source.finding(line, f"class {name} is in {first} too: say in its name what this one is")
    for name in sorted(allowed.keys() - {name for name, places in homes.items() if len(places) > 1}):
        yield Finding(
            path="tests/lint/test_tree.py", line=1, message=f"{name} is allowed twice and is not: take it out"
        )


def repeated_modules(sources: Iterable[Source], allowed: Mapping[str, str]) -> Iterator[Finding]:
    """Modules of one name in several folders, and names in `allowed` that need it no more.

    Two patterns need no permission: `sql/x.py` with the statements of `x.py`, and the file of a command, which has the
    command's name.
    """
    texts = {PurePosixPath(source.path): source.text for source in sources}
    homes: dict[str, list[PurePosixPath]] = {}
    for path in texts:
        if path.stem != "__init__" and not _is_named_after_another(path, texts):
            homes.setdefault(path.stem, []).append(path)
    for name, places in homes.items():
        if len(places) > 1 and name not in allowed:
            message = f"{places[0]} has this name too: say in its name what this one is about"
            yield Finding(path=str(places[-1]), line=1, message=message)
    for name in sorted(allowed.keys() - {name for name, places in homes.items() if len(places) > 1}):
        yield Finding(
            path="tests/lint/test_tree.py", line=1, message=f"{name} is allowed twice and is not: take it out"
        )


def _is_named_after_another(path: PurePosixPath, texts: Mapping[PurePosixPath, str]) -> bool:
    return path.parts[0] == "_cli" or (path.parent.name == "sql" and path.parents[1] / path.name in texts)


# Imports and reach


def foreign_imports(source: Source) -> Iterator[Finding]:
    if source.floor not in PURE_FLOORS:
        return
    allowed = sys.stdlib_module_names | {"onefold"} | FOREIGN_BUT_ALLOWED.get(source.path, frozenset())
    for line, module in _imported(source.tree()):
        if _top(module) not in allowed:
            yield source.finding(line, f"imports {module}: {source.floor} has the standard library only")


def stray_drivers(source: Source) -> Iterator[Finding]:
    if source.floor == "db":
        return
    for line, module in _imported(source.tree()):
        if _top(module) in DRIVERS - FOREIGN_BUT_ALLOWED.get(source.path, frozenset()):
            yield source.finding(line, f"imports the driver {module}: drivers live in db")


def ambient_reach(source: Source) -> Iterator[Finding]:
    if source.floor not in BELOW_THE_EDGE or source.path in EDGE_OF_THE_KERNEL:
        return
    for line, name in sorted(_references(source.tree())):
        if instead := AMBIENT.get(name) or AMBIENT.get(_top(name)):
            yield source.finding(line, f"{name} belongs to the edge: {instead}")


def unsafe_loading(source: Source) -> Iterator[Finding]:
    tree = source.tree()
    for line, module in _imported(tree):
        if _top(module) in RUNS_WHAT_IT_READS:
            yield source.finding(line, f"imports {module}, which runs what it reads: store plain data")
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id="eval" | "exec" as name)
                | ast.Attribute(value=ast.Name(id="builtins"), attr="eval" | "exec" as name)
            ):
                yield source.finding(node.lineno, f"{name} runs what it reads: store plain data")
            case _:
                pass


def silenced_checks(source: Source) -> Iterator[Finding]:
    if not SILENCER.search(source.text):  # neither a comment that does: to split all modules into tokens takes seconds
        return
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and SILENCER.search(token.string):
            yield source.finding(token.start[0], f"'{token.string}' silences a check: fix what it says")


# Text


def machine_paths(source: Source) -> Iterator[Finding]:
    for line, text in enumerate(source.text.splitlines(), start=1):
        if MACHINE_PATH.search(text):
            yield source.finding(line, "a path of one machine: write it from the root of the project")


def unfinished_marks(source: Source) -> Iterator[Finding]:
    for line, text in enumerate(source.text.splitlines(), start=1):
        if mark := UNFINISHED.search(text):
            yield source.finding(line, f"{mark[0]}: finish it, or take it out")


# Files


def project_files(root: Path) -> list[Path]:
    """Every file that is or would be committed, relative to `root`; without git, every file that is ours."""
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        try:
            listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError):
            pass  # no git, or a checkout of another user: the walk below sees no less
        else:
            return sorted(Path(name) for name in listed.split("\0") if name and (root / name).is_file())
    return sorted(_walk(root))


def text_of(path: Path) -> str | None:
    """The file's text, or None where it is binary."""
    content = path.read_bytes()
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


def _walk(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if _is_ours(name)]
        for name in names:
            if not name.startswith(".coverage"):
                yield (Path(folder) / name).relative_to(root)


def _is_ours(folder: str) -> bool:
    if folder.startswith("."):
        return folder in (".ci", ".github")
    return folder not in NOT_OURS and not folder.endswith(".egg-info")


def _top(module: str) -> str:
    return module.partition(".")[0]


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module
            case _:
                pass


def _references(tree: ast.Module) -> set[tuple[int, str]]:
    """Every imported name and every use of one, written out in full whatever it is called here."""
    found: set[tuple[int, str]] = set()
    full: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    full[alias.asname or _top(alias.name)] = alias.name if alias.asname else _top(alias.name)
                    found.add((node.lineno, alias.name))
            case ast.ImportFrom(module=str(module), level=0):
                for alias in node.names:
                    full[alias.asname or alias.name] = f"{module}.{alias.name}"
                    found.add((node.lineno, f"{module}.{alias.name}"))
            case _:
                pass
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := _dotted(node, full)):
            found.add((node.lineno, name))
    return found


def _dotted(node: ast.expr, full: Mapping[str, str]) -> str | None:
    match node:
        case ast.Name(id=name):
            return full.get(name)
        case ast.Attribute(value=value, attr=attr):
            inner = _dotted(value, full)
            return f"{inner}.{attr}" if inner else None
        case _:
            return None
