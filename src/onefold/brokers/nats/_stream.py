"""The stream that everything is published to: how it is made, and which settings of one that is there are refused.

Invariant: such a stream drops nothing that a consumer has not acknowledged; a full one refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from onefold.errors import ConfigurationError

#: The metadata of a stream that onefold has made. Only such a stream is trimmed by default: one of an operator's
#: own may be kept for replays.
_MARK: Final = {"created-by": "onefold"}


def stream_config(name: str, prefix: str, *, replicas: int, duplicate_window_s: float) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=[f"{prefix}.>"],
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.NEW,
        storage=StorageType.FILE,
        num_replicas=replicas,
        duplicate_window=duplicate_window_s,
        metadata=dict(_MARK),
    )


def is_ours(config: StreamConfig) -> bool:
    return _MARK.items() <= (config.metadata or {}).items()


def covers(subjects: Sequence[str] | None, prefix: str) -> bool:
    parts = prefix.split(".")
    above = {".".join((*parts[:depth], ">")) for depth in range(len(parts) + 1)}
    return bool(above & set(subjects or ()))


def check(config: StreamConfig, prefix: str) -> None:
    """Refuse a stream that could lose a message, or could not detect a duplicate."""
    limits = {"max_msgs": config.max_msgs, "max_bytes": config.max_bytes}
    limited = {name: value for name, value in limits.items() if (value or -1) > 0}
    per_subject = config.max_msgs_per_subject > 0
    # nats-py before 2.10 does not read that setting. A stream that has it is refused there, although it is safe.
    new_per_subject = getattr(config, "discard_new_per_subject", False)
    keeps_per_subject = config.discard == DiscardPolicy.NEW and new_per_subject
    problems = (
        (not covers(config.subjects, prefix), f"subjects={config.subjects}", f"add {prefix}.>"),
        (config.storage != StorageType.FILE, "storage=memory", "use file"),
        (config.no_ack, "no_ack=true", "turn it off: nothing would be confirmed"),
        (config.retention == RetentionPolicy.WORK_QUEUE, "retention=workqueue", "use limits"),
        (
            config.retention == RetentionPolicy.INTEREST,
            "retention=interest",
            "use limits: it drops what no consumer has subscribed to yet",
        ),
        (bool(config.max_age), f"max_age={config.max_age} s", "set it to 0: it drops what was not consumed"),
        (
            bool(limited) and config.discard != DiscardPolicy.NEW,
            f"discard=old with {limited}",
            "use discard=new: a full stream must refuse, not forget",
        ),
        (
            per_subject and not keeps_per_subject,
            f"max_msgs_per_subject={config.max_msgs_per_subject}",
            "use -1, or discard=new with discard_new_per_subject and nats-py 2.10 or later",
        ),
        (config.duplicate_window <= 0, "duplicate_window=0", "use ten minutes"),
    )
    for unsafe, setting, way_out in problems:
        if unsafe:
            raise ConfigurationError(f"the NATS stream {config.name!r} has {setting}: {way_out}")
