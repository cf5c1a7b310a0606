"""The checks of a Prometheus: does it scrape exporters, and does it evaluate rules that fit its intervals?"""

import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from typing import Any

from stepscope.commands.doctor.checks import Check, Result, broken, unknown, works
from stepscope.common.durations import parse_duration
from stepscope.common.errors import UserError
from stepscope.rules.parts.node_names import DCGM_LABELS, GPUS_OF_DCGM, by_node
from stepscope.runs.prometheus.address import Access
from stepscope.runs.prometheus.connection import Connection

_RANGE = re.compile(r"\[((?:\d+(?:ms|[smhdw]))+)\]")  # of scraped series: subqueries see older values, too
SCRAPES = 2  # in the shortest range of rendered rules, at least
OURS = "stepscope"
NO_RULER = unknown(
    "this server does not say which rules are evaluated", "ask the one that evaluates them, such as vmalert"
)
ADDRESS = "give its address with --prometheus URL"


def of_prometheus(url: str) -> Iterator[Check]:
    """Yields the checks of a server; only the first if it does not answer."""
    server = Connection(Access.of_flag("--prometheus", url))
    try:
        scraped = server.get("query", query="stepscope_exporter_build_info")["result"]
        yield Check("Prometheus", *works(f"{server.url} answers"))
        yield Check("scraping", *_exporters(scraped))
        if theirs := _nodes(server, by_node(GPUS_OF_DCGM, DCGM_LABELS)):
            ours = _nodes(server, by_node("stepscope_exporter_build_info", ["instance"]))
            yield Check("names", *_names(theirs, ours))
        found = server.find("rules")
        groups = [group for group in (found or {"groups": []})["groups"] if group["name"].startswith(OURS)]
        yield Check("rules", *(_rules(groups) if found else NO_RULER))
        if groups:
            yield Check("intervals", *_intervals(groups, _longest_interval(server, scraped)))
            known = server.find("alertmanagers") or {"activeAlertmanagers": []}
            yield Check("Alertmanager", *_alertmanagers(known["activeAlertmanagers"]))
    except UserError as error:
        yield Check("Prometheus", *broken(str(error), ADDRESS))
    except (KeyError, TypeError, AttributeError, ArgumentTypeError):
        yield Check("Prometheus", *broken(f"{server.url} does not answer as Prometheus does", ADDRESS))
    finally:
        server.close()


def _exporters(scraped: list[Any]) -> Result:
    if not scraped:
        return broken(
            "Prometheus scrapes no exporter of Stepscope",
            "add the node as host:9870 to a scrape_config; see its page Status > Targets",
        )
    return works(f"exporters scraped: {len(scraped)}")


def _nodes(server: Connection, query: str) -> set[tuple[str, str]]:
    """Returns clusters and names of nodes."""
    found = [one["metric"] for one in server.get("query", query=query)["result"]]
    return {(each.get("cluster", ""), each.get("instance", "")) for each in found}


def _names(theirs: set[tuple[str, str]], ours: set[tuple[str, str]]) -> Result:
    """Returns whether rules find the nodes of dcgm-exporter among those of our exporters."""
    both = theirs & ours
    if ours and not both:
        return broken(
            f"dcgm-exporter names its nodes {min(theirs)[1]} and so on, exporters of Stepscope theirs "
            f"{min(ours)[1]}: rules join no GPU with a run",
            "set `instance` to the node's host name, and NODE_NAME for dcgm-exporter in Kubernetes",
        )
    return works(f"nodes of dcgm-exporter with an exporter: {len(both)} of {len(theirs)}")


def _rules(groups: list[Any]) -> Result:
    if not groups:
        return broken(
            "no rules of Stepscope are loaded: no alert will come",
            "stepscope rules render --out DIR, name DIR/*.yml in rule_files, and reload Prometheus",
        )
    failing = [
        f"{rule['name']}: {rule.get('lastError', '')}"
        for group in groups
        for rule in group["rules"]
        if rule.get("health") == "err"
    ]
    if failing:
        return broken(
            f"{len(failing)} rules fail: {failing[0]}",
            "render the rules again with this version, and reload Prometheus",
        )
    count = sum(len(group["rules"]) for group in groups)
    return works(f"{count} rules in {len(groups)} groups are loaded")


def _longest_interval(server: Connection, scraped: list[Any]) -> float | None:
    """Returns the longest scrape interval of an exporter in seconds; None if the server does not say."""
    known = {(one["metric"].get("job"), one["metric"].get("instance")) for one in scraped}
    found = [
        parse_duration(target["scrapeInterval"])
        for target in (server.find("targets") or {"activeTargets": []})["activeTargets"]
        if "scrapeInterval" in target
        and (target["labels"].get("job"), target["labels"].get("instance")) in known
    ]
    return max(found, default=None)


def _intervals(groups: list[Any], scrape: float | None) -> Result:
    if scrape is None:
        return unknown(
            "the server does not say how often it scrapes",
            "see its scrape_interval",
        )
    queries = (rule["query"] for group in groups for rule in group["rules"])
    ranges = [parse_duration(text) for query in queries for text in _RANGE.findall(query)]
    shortest = min(ranges, default=scrape * SCRAPES)
    if shortest < scrape * SCRAPES:
        return broken(
            f"exporters are scraped every {scrape:g} s, too seldom for rules that look back {shortest:g} s",
            f"stepscope rules render --scrape-interval {scrape:g}s, and reload Prometheus",
        )
    return works(f"the rules fit scrapes every {scrape:g} s")


def _alertmanagers(active: list[Any]) -> Result:
    if not active:
        return unknown(
            "Prometheus sends alerts to no Alertmanager: nobody is notified",
            "name one under `alerting` in prometheus.yml (docs/notifications.md)",
        )
    return works(f"alerts are sent to {active[0]['url']}")
