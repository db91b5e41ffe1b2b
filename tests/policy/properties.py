"""How properties are searched here: with care for the real machines; and for planted bugs without shrinking and the
same way every time, because what is found by luck is missed by bad luck."""

from __future__ import annotations

from hypothesis import Phase, settings

properties = settings(max_examples=200, deadline=None, database=None, report_multiple_bugs=False)
planted = settings(properties, max_examples=1000, phases=(Phase.generate,), derandomize=True)
