"""What is wrong with the settings of a layer, said where they are written."""

from __future__ import annotations

from onefold._http.route_policy import is_bool
from onefold.errors import ConfigurationError


def are_bools(**switches: object) -> None:
    for name, value in switches.items():
        is_bool(name, value)


def check_parts(pages: object, shedding: object, sealer: object) -> None:
    if pages is not None and not (isinstance(pages, str) and pages.startswith("/")):
        raise ConfigurationError(f"pages={pages!r} must be a path that starts with '/', or None for no pages")
    if shedding is not None:
        _check_shedding(shedding)
    if sealer is not None and not all(callable(getattr(sealer, name, None)) for name in ("seal", "unseal")):
        raise ConfigurationError(
            f"sealer of type {type(sealer).__qualname__} cannot seal and unseal; give a Keyring, as in "
            "sealer=onefold.Keyring({'2026': key}, write='2026')"
        )


def _check_shedding(shedding: object) -> None:
    from onefold._http.shedding import Shedding

    if not isinstance(shedding, Shedding):
        meant = "a Shedding, as in shedding=onefold.shedding.Shedding(limit=100), or None"
        raise ConfigurationError(f"shedding={shedding!r} must be {meant}")
