"""How long tests wait for what must come. A wait ends as soon as it comes, so patience costs nothing; a machine that is
busy with other work may need all of it."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 120.0
