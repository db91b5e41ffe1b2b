"""The address of a heading in its page, as forges make it: the links of docs/ lead to the same place there and here."""

from __future__ import annotations

import re


def slugify(title: str, separator: str = "-") -> str:
    """In lower case, without punctuation, with a separator for each space."""
    return re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", separator)
