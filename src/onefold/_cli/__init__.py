"""The command line: `onefold COMMAND`. One file per command."""

from __future__ import annotations

import sys


def main() -> None:
    """The `onefold` command."""
    try:
        from onefold._cli.commands import assemble

        app = assemble(sys.argv[1:])
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"onefold: the command line needs {error.name}: pip install 'onefold[cli]'")
    from onefold.errors import OnefoldError

    try:
        app(prog_name="onefold")
    except OnefoldError as error:
        # One line: what the error names is what the operator needs.
        sys.exit(f"onefold: {error}")
