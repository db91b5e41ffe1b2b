"""How properties are searched here: with care for the real machines, and without shrinking for planted bugs."""

from __future__ import annotations

from hypothesis import Phase, settings

properties = settings(max_examples=200, deadline=None, database=None, report_multiple_bugs=False)
planted = settings(properties, max_examples=1000, phases=(Phase.generate,))
