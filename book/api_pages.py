"""The pages of the API: one for each public module, which mkdocstrings fills from signatures and docstrings."""

from __future__ import annotations

import importlib
import re
from typing import Final

from book.files import ROOT
from book.tables import code, write_table

_LISTED: Final = (ROOT / "tests" / "surface" / "surface.txt").read_text(encoding="utf-8")

_HEAD = """\
# API

Every public module, with its names. What most programs need is in `onefold` itself; [stability](../../stability.md)
says what a version number promises about them.

"""


def list_modules() -> list[str]:
    """The public ones, as `tests/surface` has them."""
    return re.findall(r"^# (onefold[\w.]*)$", _LISTED, re.MULTILINE)


def make_pages() -> dict[str, str]:
    """By address."""
    modules = list_modules()
    rows = []
    made = {}
    for name in modules:
        made[f"reference/api/{name}.md"] = f"# {name}\n\n::: {name}\n"
        first = (importlib.import_module(name).__doc__ or "").strip().partition("\n\n")[0]
        rows.append((f"[{code(name)}]({name}.md)", first))
    made["reference/api/index.md"] = _HEAD + write_table(["module", "what it has"], rows)
    return made
