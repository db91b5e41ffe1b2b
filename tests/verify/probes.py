"""A run of the prober against an API in memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from onefold._verify.catalogue import choose
from onefold._verify.findings import ProbeReport
from onefold._verify.payloads import Payloads
from onefold._verify.probing import Probe, Surroundings, Target
from onefold._verify.profiles import IETF, STRIPE
from onefold._verify.running import run
from tests.verify.model_api import ModelApi

ACME = (("Authorization", b"Bearer sk-acme-secret"),)
UMBRELLA = (("Authorization", b"Bearer sk-umbrella-secret"),)


def probe(
    api: ModelApi,
    *,
    counted: bool = True,
    template: str | None = '{"item": "{{unique}}"}',
    other: str | None = None,
    only: tuple[str, ...] = (),
    canary: bool = False,
    publish: Callable[[str], None] | None = None,
    **more: Any,
) -> ProbeReport:
    """All checks, with everything given that a check may need."""
    given: dict[str, Any] = {
        "other_headers": UMBRELLA,
        "other_url": "http://127.0.0.1:1/refunds",
        "expiry_s": 100.0,
        "headers": ACME,
        "duplicates": 4,
        "key_optional": api.key_optional,
    }
    profile = STRIPE if api.stripe else IETF
    target = Target(url="http://127.0.0.1:1/orders", method="POST", profile=profile, **(given | more))
    numbers = count(1)
    around = Surroundings(
        port=api,
        new_key=lambda: f"key-{next(numbers)}",
        wait=api.wait,
        count=api.count if counted else None,
        publish=publish,
    )
    checks, left_out = choose(profile, only=only, canary=canary)
    return run(
        Probe(target, Payloads(template, run="run", other=other), around),
        checks,
        left_out=left_out,
        shown="http://127.0.0.1:1/orders",
        run_id="run",
        now=lambda: api.now_s,
        on_check=lambda _: None,
    )


def names(report: ProbeReport, outcome: Any) -> list[str]:
    return [finding.check for finding in report.of(outcome)]
