"""A module that needs what is not installed."""

from __future__ import annotations

from importlib import import_module

import_module("not_installed_anywhere")
