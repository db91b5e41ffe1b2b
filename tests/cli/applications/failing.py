"""A module that cannot be imported."""

from __future__ import annotations

import json

SETTINGS = json.loads("{")
