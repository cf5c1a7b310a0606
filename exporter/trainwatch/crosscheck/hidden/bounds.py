"""Compares each value and alert of a rule with what all samples until then give.

Prometheus sees nothing between two scrapes, so a rule's value may be as old as the last scrape. It must
equal the rule's value at some moment since the scrape before. An alert must be no later than with the
oldest of these values, and no earlier than with the youngest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainwatch.crosscheck.compare import Disagreement
from trainwatch.crosscheck.expected import Expected, alert_states
from trainwatch.crosscheck.hidden.archive import Archive, Sampling
from trainwatch.crosscheck.hidden.compared import Compared
from trainwatch.crosscheck.hidden.played_back import PlayedBack
from trainwatch.crosscheck.readings import Readings
from trainwatch.crosscheck.server import Milliseconds, Server
from trainwatch.crosscheck.stored import Stored
from trainwatch.measurements.scraped import Labels, without
from trainwatch.rules.base import Rule
from trainwatch.rules.promql import Alert, Scraping

STATES = (None, "pending", "firing")  # in the order in which an alert reaches them


class Bounds:
    """The comparison of one rule with the recording. Raises UserError if the server fails."""

    def __init__(
        self,
        server: Server,
        archive: Archive,
        rule: Rule[Any, Any],
        scraping: Scraping,
        stored: Stored,
        sampling: Sampling,
    ) -> None:
        self.rule, self.scraping, self.stored = rule, scraping, stored
        self.archive, self.sampling = archive, sampling
        scrapes = stored.window.scrapes
        self.scrape = scrapes.mostly
        self.oldest = scrapes.longest + scrapes.unseen + sampling.interval + sampling.late
        self.recorded = Readings(server, stored.window.run, stored.grid)
        self.seen = self._seen_targets(server)
        self.exact = self._expected(0, 0)[0]
        self.possible = self._possible()

    def compared(self) -> list[Compared]:
        """Returns one result per recorded series, and one for the alerts."""
        found = [self._compare_series(series) for series in self.stored.records]
        alerts = Compared(self.rule.name, "ALERTS")
        for position, alert in enumerate(self.stored.rules.alerts):
            self._compare_alert(alerts, position, alert)
        return [*found, alerts]

    def _seen_targets(self, server: Server) -> list[set[Labels]]:
        """Returns, for each moment of the grid, the targets with samples of the run."""
        samples = Readings(server, self.stored.window.run, self.stored.grid)
        return [
            {without(labels, "run") for labels in samples.at(index)("trainwatch_samples_total")}
            for index in range(self.stored.grid.count)
        ]

    def _possible(self) -> list[list[Expected]]:
        """Returns, for each evaluation, what the rule may record for each possible age of the last scrape."""
        found: list[list[Expected]] = [[exact] for exact in self.exact]
        sample = self.sampling.interval
        for age in range(-sample, self.oldest + sample, sample):
            undisturbed, looks_back = self._expected(age, 0)
            variants = [undisturbed]
            if looks_back:
                variants += [self._expected(age, jitter)[0] for jitter in self._jitters(age)]
            for variant in variants:
                for possible, expected in zip(found, variant, strict=True):
                    possible.append(expected)
        return found

    def _jitters(self, age: Milliseconds) -> list[Milliseconds]:
        """Returns by how much earlier scrapes may be off from whole intervals, without 0.

        That is one sample more or less, and more if samples or scrapes come late. What looks like an old
        scrape may be an old sample in a recent scrape, and so may earlier scrapes.
        """
        sample, scrapes = self.sampling.interval, self.stored.window.scrapes
        late, missed = self.sampling.late, scrapes.longest - scrapes.mostly
        least, most = (1 + (late + more) // sample for more in (0, missed))
        found = {
            sample * count + scrapes.mostly * older
            for count in range(-least, most + 1)
            for older in range(1 + max(0, age) // scrapes.mostly)
        }
        return sorted(found - {0})

    def _expected(self, age: Milliseconds, jitter: Milliseconds) -> tuple[list[Expected], bool]:
        grid = self.stored.grid
        played = PlayedBack(self.archive, self.recorded, grid, self.sampling, self.scrape, age, jitter)
        found = []
        for time in self.stored.times:
            index = grid.index(time)
            assert index is not None
            found.append(played.expected(index, self.rule, self.scraping))
        return found, played.looks_back

    def _compare_series(self, series: str) -> Compared:
        found = Compared(self.rule.name, series)
        samples = self.stored.records[series]
        for number, time in enumerate(self.stored.times):
            if time < self.stored.window.start:
                continue
            theirs = samples.get(time, {})
            exact = self.exact[number].values_of(series)
            possible = [expected.values_of(series) for expected in self.possible[number]]
            for labels in dict.fromkeys(labels for vector in (theirs, *possible) for labels in vector):
                values = [vector[labels] for vector in possible if labels in vector]
                must_be = len(values) == len(possible) and self._is_seen(time, labels)
                found.add(time, labels, exact.get(labels), values, theirs.get(labels), must_be)
        return found

    def _is_seen(self, time: Milliseconds, labels: Labels) -> bool:
        index = self.stored.grid.index(time)
        return index is not None and any(target <= labels for target in self.seen[index])

    def _compare_alert(self, found: Compared, position: int, alert: Alert) -> None:
        """Checks that no alert is in an earlier or later state than the possible conditions allow."""
        every = [[expected.conditions[position] for expected in possible] for possible in self.possible]
        least = self._states(alert, [frozenset.intersection(*conditions) for conditions in every])
        most = self._states(alert, [frozenset.union(*conditions) for conditions in every])
        exact = self._states(alert, [expected.conditions[position] for expected in self.exact])
        own = self.stored.own_labels(alert)
        stored = dict(self.stored.alerting)
        actual: list[dict[Labels, str]] = []
        for number, time in enumerate(self.stored.times):
            alerting = stored.get(time, {})
            actual.append({labels - own: state for labels, state in alerting.items() if own <= labels})
            if time < self.stored.window.start:
                continue
            for labels in dict.fromkeys((*most[number], *actual[number])):
                theirs = actual[number].get(labels)
                found.values += 1
                low, high = (STATES.index(states[number].get(labels)) for states in (least, most))
                restoring = theirs is None and time in self.stored.restoring
                if not low <= STATES.index(theirs) <= high and not restoring and self._is_seen(time, labels):
                    allowed = " or ".join(state or "nothing" for state in STATES[low : high + 1])
                    found.excesses.append(
                        Disagreement(found.subject, time, "ALERTS", labels | own, allowed, theirs)
                    )
        self._note_delays(found, exact, actual)

    def _states(self, alert: Alert, conditions: Sequence[frozenset[Labels]]) -> list[dict[Labels, str]]:
        return alert_states(self.stored.times, conditions, alert.pending, alert.keep_firing)

    def _note_delays(
        self, found: Compared, exact: Sequence[dict[Labels, str]], actual: Sequence[dict[Labels, str]]
    ) -> None:
        """Notes how much later alerts fired than they would have with every sample."""
        found.bound = max(found.bound, (self.oldest + self.stored.grid.step) / 1000)
        times = self.stored.times
        before: set[Labels] = set()
        waiting: dict[Labels, Milliseconds] = {}
        for number, time in enumerate(times):
            fire = {labels for labels, state in exact[number].items() if state == "firing"}
            if time >= self.stored.window.start:
                waiting |= dict.fromkeys(fire - before, time)
            before = fire
            for labels in [labels for labels in waiting if actual[number].get(labels) == "firing"]:
                found.largest = max(found.largest, (time - waiting.pop(labels)) / 1000)
