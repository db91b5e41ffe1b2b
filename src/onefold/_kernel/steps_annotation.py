"""Parameters annotated with Steps, known by name: an application whose handlers do not work in steps need not import
them."""

from __future__ import annotations

from typing import Annotated, Final, get_args, get_origin

_STEPS: Final = ("onefold._steps.steps", "Steps")


def is_steps(annotation: object) -> bool:
    """Whether a parameter is for the recorded steps of a work. An annotation that could not be resolved is judged by
    its text."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, str):
        return annotation.strip("'\"").rpartition(".")[2] == "Steps"
    return (getattr(annotation, "__module__", ""), getattr(annotation, "__qualname__", "")) == _STEPS
