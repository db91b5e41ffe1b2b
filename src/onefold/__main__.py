"""`python -m onefold`: the command line."""

from __future__ import annotations

from onefold._cli import main

if __name__ == "__main__":
    main()
