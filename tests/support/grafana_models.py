"""Reads dashboards with the models of a grafana-foundation-sdk; says what they do not know or type otherwise.

The SDK's models are generated from the schemas of one version of Grafana. Several versions cannot be imported
into one process, so this is run as a program for each, with the SDK in front of the path:

    PYTHONPATH=MODELS python -m tests.support.grafana_models FILE...

It writes, as JSON, a list of [file, path, problem] for each field that is lost when a dashboard is read and
written again, and for each value whose type is not the declared one.
"""

import enum
import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

Problem = tuple[str, str]  # where, and what


def problems(written: typing.Any) -> Iterator[Problem]:
    """Of one dashboard."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    model = Dashboard.from_json(written)
    yield from _lost(written, json.loads(json.dumps(model, cls=JSONEncoder)), "")
    yield from _mistyped(model, "")


def _lost(before: typing.Any, after: typing.Any, where: str) -> Iterator[Problem]:
    """What is not there any more, or not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from _lost(value, after[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}", "is not known"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from _lost(one, other, f"{where}[]")
    elif before != after:
        yield where, f"is {before!r}, read as {after!r}"


def _mistyped(value: typing.Any, where: str) -> Iterator[Problem]:
    """Fields of models, however deep, whose value is not of the declared type."""
    if isinstance(value, list):
        for one in value:
            yield from _mistyped(one, f"{where}[]")
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _mistyped(one, f"{where}.{key}")
    elif type(value).__module__.startswith("grafana_foundation_sdk.models"):
        if isinstance(value, enum.Enum):
            return
        for name, declared in typing.get_type_hints(type(value)).items():
            field = getattr(value, name)
            if not _is(field, declared):
                yield f"{where}.{name}", f"is {field!r}, declared {declared}"
            yield from _mistyped(field, f"{where}.{name}")


def _is(value: typing.Any, declared: typing.Any) -> bool:
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if declared is typing.Any or declared is object:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, one) for one in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(_is(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_is(one, arguments[1]) for one in value.values())
    if declared is type(None):
        return value is None
    if isinstance(declared, type) and issubclass(declared, enum.Enum):
        return value in [one.value for one in declared] or isinstance(value, declared)
    if declared is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if declared is int:
        return isinstance(value, int) and not isinstance(value, bool)
    # A model, an interface of several models, or a dictionary that the SDK leaves as it is.
    plain = declared in (str, bool)
    return isinstance(value, declared) or (
        not plain and (isinstance(value, dict) or hasattr(value, "to_json"))
    )


def _main(files: list[str]) -> None:
    found = [
        (Path(file).name, where, what)
        for file in files
        for where, what in problems(json.loads(Path(file).read_text(encoding="utf-8")))
    ]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main(sys.argv[1:])
