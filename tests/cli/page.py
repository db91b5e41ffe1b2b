"""docs/commands.md, from the commands themselves: `python -m tests.cli.page` rewrites it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

from onefold._cli.commands import assemble
from onefold._cli.manual import EXAMPLES, EXIT_CODES, GROUPS, rows_of

PAGE: Final = Path(__file__).parents[2] / "docs" / "commands.md"

_HEAD: Final = """\
# Commands

What `onefold --help` says, as a page; `onefold COMMAND --help` has all options and an example.
`pip install 'onefold[cli]'` brings the command, `onefold --install-completion` has your shell complete its words.
Results go to stdout, everything else to stderr; `--json` prints what a program can read. `ONEFOLD_DATABASE` and
`ONEFOLD_BROKER` stand in for `--database` and `--broker`. For `postgresql://` the command takes asyncpg where that is
installed, else psycopg: `pip install 'onefold[cli,asyncpg]'`. `DATABASE_URL`, in examples, is a variable of your own
application, which onefold does not read.
"""


def write_page() -> str:
    rows = rows_of(typer.main.get_command(assemble([])))
    parts = [_HEAD]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n\n| command | what it does |\n|---|---|")
        parts += [f"| `onefold {row.path}` | {row.about} |" for row in rows if row.path.split()[0] in names]
        parts.append("")
        examples = [example for name in names for example in EXAMPLES[name]]
        parts.append("```console\n" + "\n".join(f"$ {example}" for example in examples) + "\n```\n")
    parts.append("## Exit codes\n\n| code | meaning |\n|---|---|")
    parts += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
