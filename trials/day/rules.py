"""Which rules lead to alerts, and which series they read."""

import re
from collections.abc import Sequence
from dataclasses import replace

from stepscope.prometheus.crosscheck.rule_files import FileGroup

_NAMES = re.compile(r"[a-zA-Z_][\w:]*")
_BUCKETS = re.compile(r"(stepscope_\w+_bucket)\b(?:\{([^}]*)\})?")
_BOUND = re.compile(r'\ble(=~|=)"([^"]*)"')


def that_alert(groups: Sequence[FileGroup]) -> list[FileGroup]:
    """Returns the groups without the records that no alert reads, such as those for dashboards."""
    rules = [rule for group in groups for rule in group.rules]
    read: set[str] = set()
    wanted = {id(rule) for rule in rules if rule.is_alert}
    before = -1
    while len(wanted) > before:
        before = len(wanted)
        read = {name for rule in rules if id(rule) in wanted for name in _NAMES.findall(rule.expression)}
        wanted |= {id(rule) for rule in rules if rule.name in read and not rule.is_alert}
    return [replace(group, rules=[rule for rule in group.rules if id(rule) in wanted]) for group in groups]


class Reads:
    """The scraped series that rules read."""

    def __init__(self, groups: Sequence[FileGroup]) -> None:
        expressions = [rule.expression for group in groups for rule in group.rules]
        self.names = {name for each in expressions for name in _NAMES.findall(each)}
        self._bounds: dict[str, list[re.Pattern[str]]] = {}
        for each in expressions:
            for name, matchers in _BUCKETS.findall(each):
                self._bounds.setdefault(name, []).append(_of_bound(matchers))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def bound(self, name: str, bound: str) -> bool:
        """Returns whether some rule reads this bucket of a histogram."""
        return any(each.fullmatch(bound) for each in self._bounds.get(name, ()))


def _of_bound(matchers: str) -> re.Pattern[str]:
    found = _BOUND.search(matchers)
    if found is None:
        return re.compile(".*")
    return re.compile(found[2] if found[1] == "=~" else re.escape(found[2]))
