"""Adapts groups of rules to engines that may store what a rule records after they evaluated the next rule.

There, no rule may read what its group records at the same evaluation: it would read that or an older value,
by chance. So it reads what the evaluation before recorded (`offset` by the group's interval), or contains the
expression itself. All else that it reads is also of that time, so it decides as Prometheus did then. However
many records an alert builds on, it fires one evaluation later than in Prometheus.
"""

import re
from re import Match

from stepscope.common.durations import parse_duration
from stepscope.prometheus.rules.groups import FINDING, Entry, Group, finding
from stepscope.prometheus.rules.options import Engine
from stepscope.rules.parts.expressions import time_span

# Characters of an expression that computes a record from scraped series at once, with all that it builds on.
# Longer ones build on such records, as VictoriaMetrics accepts no expression of any length.
AT_ONCE = 4000

_READ = re.compile(
    r"(?P<series>\b(?P<name>[a-zA-Z_][\w:]*)(?:\{[^}]*\})?)(?P<range>\[\w+\])?(?: offset (?P<ago>\w+))?"
)
_SCRAPED = re.compile(r"stepscope_\w+|up")


def for_engine(group: Group, engine: Engine) -> Group:
    """Returns the group as the engine needs it."""
    return group if engine.stores_at_once else {**group, "rules": _Delayed(group, engine).rules()}


class _Delayed:
    """The rules of a group, none of which reads a result of the same evaluation."""

    def __init__(self, group: Group, engine: Engine) -> None:
        self._rules: list[Entry] = group["rules"]
        self._interval, self._engine = parse_duration(group["interval"]), engine
        self._recorded = {rule["record"] for rule in self._rules if "record" in rule}
        self._at_once: dict[str, str] = {}  # records, with all that they build on
        self._late: dict[str, str] = {}  # records that build on stored ones, and findings by their selector

    def rules(self) -> list[Entry]:
        return [self._alert(rule) if "alert" in rule else self._record(rule) for rule in self._rules]

    def _record(self, rule: Entry) -> Entry:
        name, expression = rule["record"], rule["expr"]
        whole = self._at_once_or_none(name, expression)
        if whole is not None:
            self._at_once[name] = whole
            return {**rule, "expr": whole}
        late = self._late_of(name, expression)
        self._late[finding(rule["labels"]) if name == FINDING else name] = late
        return {**rule, "expr": late}

    def _alert(self, rule: Entry) -> Entry:
        """Returns an alert; without `keep_firing_for`, it reads what was found in that time."""
        found = rule["expr"]
        late = self._late.get(found) or self._late_of("", found)
        kept = rule.get("keep_firing_for")
        if not kept or self._engine.keeps_firing:
            return {**rule, "expr": late}
        # The last value is as old as the evaluation before the first one without a finding.
        span = time_span(parse_duration(kept) + self._interval)
        if found in self._late:
            own = ", ".join(re.findall(r"(\w+)=", found))
            late = f"{late}\nor ignoring ({own})\nlast_over_time({found}[{span}])"
        else:
            late = f"last_over_time(({late})[{span}:{time_span(self._interval)}])"
        return {name: late if name == "expr" else rule[name] for name in rule if name != "keep_firing_for"}

    def _at_once_or_none(self, name: str, expression: str) -> str | None:
        """Returns a record's expression with those of all records that it reads; None if it is too long."""
        if name.startswith("stepscope:"):  # read by dashboards
            return None
        complete = True

        def written_out(read: Match[str]) -> str:
            nonlocal complete
            if read["name"] not in self._recorded - {name}:
                return read[0]
            complete = complete and read["name"] in self._at_once and not (read["range"] and not read["ago"])
            return read[0] if read["ago"] else f"({self._at_once.get(read['name'], '')})"

        whole = _READ.sub(written_out, expression)
        return whole if complete and (len(whole) <= AT_ONCE or whole == expression) else None

    def _late_of(self, name: str, expression: str) -> str:
        """Returns the expression as it was at the evaluation before, if it reads results of its group."""
        others = self._recorded - {name}
        if not any(read["name"] in others for read in _READ.finditer(expression)):
            return expression
        return _READ.sub(lambda read: self._earlier(read) if read["name"] != name else read[0], expression)

    def _earlier(self, read: Match[str]) -> str:
        """Returns what to read instead, so that it is what was read at the evaluation before."""
        name = read["name"]
        if name in self._late:  # is what Prometheus recorded at the evaluation before
            return read[0] if read["ago"] or read["range"] else f"({self._late[name]})"
        if name not in self._recorded and not _SCRAPED.fullmatch(name):
            return read[0]
        ago = self._interval + (parse_duration(read["ago"]) if read["ago"] else 0)
        return f"{read['series']}{read['range'] or ''} offset {time_span(ago)}"
