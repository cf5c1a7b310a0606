"""Reads the parameters of rules, from the command line or a file."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml

from stepscope.common.errors import UserError, did_you_mean
from stepscope.rules import all_rules
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.parameters import (
    Parameters,
    Percent,
    Seconds,
    Specification,
    Value,
    specifications,
)
from stepscope.rules.parts.silences import SILENCES

P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class Account(Parameters):
    """Those of findings that the account of the run has, and no rule."""

    large: Annotated[Percent, "a part of the run above this is a finding, if it could be avoided"] = 10
    # In 3 s, first calls, caches and late imports, which come once, are large parts.
    shortest: Annotated[Seconds, "runs shorter than this have none: much of their time passes once"] = 3


@dataclass(frozen=True)
class Settings:
    """Values by rule and parameter; the other parameters have their defaults."""

    values: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)

    @classmethod
    def parse(cls, words: Iterable[str], file: Path | None = None) -> "Settings":
        """Returns the settings of `Rule.parameter=value` words, which override those of a YAML file.

        Raises UserError if a rule or a parameter is unknown, or a value is out of its bounds.
        """
        values = {rule: dict(known) for rule, known in cls.read(file).values.items()} if file else {}
        for word in words:
            name, equals, text = word.partition("=")
            rule, dot, parameter = name.strip().partition(".")
            if not equals or not dot:
                raise UserError(f"--set {word}: write Rule.parameter=value, as in CPUBottleneck.threshold=40")
            specification = _specification(rule, parameter, f"--set {word}")
            with _naming(f"--set {word}"):
                values.setdefault(rule, {})[parameter] = specification.parse(text.strip())
        return cls(values)

    @classmethod
    def read(cls, file: Path) -> "Settings":
        """Returns the settings of a YAML file of rules and parameters. Raises UserError as `parse` does."""
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{file}: cannot be read ({error.strerror}); give a YAML file of rules") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as a date that there is not
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark else ""
            raise UserError(
                f"{file}{line}: is not YAML; write `Rule:` and below it `parameter: value`"
            ) from None
        values: dict[str, dict[str, Value]] = {}
        for rule, parameters in _mapping(content, str(file)).items():
            for parameter, value in _mapping(parameters, f"{file}: {rule}").items():
                specification = _specification(str(rule), str(parameter), str(file))
                with _naming(f"{file}: {rule}.{parameter}"):
                    values.setdefault(rule, {})[parameter] = _checked(specification, value)
        return cls(values)

    def words(self) -> tuple[str, ...]:
        """Returns the settings as `Rule.parameter=value` words."""
        return tuple(
            f"{rule}.{parameter}={'none' if value is None else value}"
            for rule, parameters in self.values.items()
            for parameter, value in parameters.items()
        )

    def rules(self) -> list[Rule[Any, Any]]:
        """Returns every rule with these parameters."""
        return [rule(rule.parameters_type(**self.values.get(name, {}))) for name, rule in all_rules().items()]

    def of(self, parameters: type[P]) -> P:
        """Returns the parameters of an alert on Stepscope itself, or of the account."""
        return parameters(**self.values.get(parameters.__name__, {}))


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Turns a ValueError into a UserError with the place of the value."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _specification(rule: str, parameter: str, where: str) -> Specification:
    types = {**{name: known.parameters_type for name, known in all_rules().items()}, **SILENCES}
    types[Account.__name__] = Account
    if rule not in types:
        hint = did_you_mean(rule, types, f"the rules are {', '.join(types)}")
        raise UserError(f"{where}: there is no rule {rule!r}; {hint}")
    known = specifications(types[rule])
    if parameter not in known:
        has = f"its parameters are {', '.join(known)}" if known else "it has none"
        hint = did_you_mean(parameter, known, has)
        raise UserError(f"{where}: {rule} has no parameter {parameter!r}; {hint}")
    return known[parameter]


def _mapping(content: object, where: str) -> dict[Any, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{where}: write `Rule:` and below it, indented, `parameter: value`")
    return content


def _checked(specification: Specification, value: object) -> Value:
    if isinstance(value, str):
        return specification.parse(value)
    specification.check(value)
    return value  # type: ignore[return-value]  # it was just checked
