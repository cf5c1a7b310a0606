"""The demo's scenarios, each on a node of its own, as a Prometheus scrapes them."""

from stepscope.commands.demo import simulated_directory
from stepscope.demo.node import INTERVAL, SimulatedClock, make_exporter
from stepscope.demo.scenarios import all_scenarios
from stepscope.demo.simulation import Simulation
from stepscope.prometheus.crosscheck.server import Series

from trials.shared_cluster.judge import needed, rule_groups
from trials.shared_cluster.machine import Scrapes
from trials.shared_cluster.plan import START

SCRAPE_SECONDS = 15
SHORTEST = 13  # minutes of a run, in which each rule can decide: some are evaluated every four minutes
AFTER = 6  # minutes for which a node is scraped after its run


def run_of(scenario: str) -> str:
    return f"simulated-{scenario}"


def seconds_of(scenario: str) -> float:
    """Returns how long the scenario's node is scraped."""
    return 60.0 * (AFTER + max(SHORTEST, all_scenarios()[scenario].minutes))


def scraped(scenario: str) -> list[Series]:
    """Returns what a Prometheus scrapes of the scenario, every 15 s from START."""
    read = needed(rule_groups(SCRAPE_SECONDS))
    played = all_scenarios()[scenario]()
    seconds = seconds_of(scenario)
    scrapes = Scrapes({"instance": f"{scenario}-node"})
    with simulated_directory() as directory:
        clock = SimulatedClock(START)
        simulation = Simulation(played, 0, run_of(scenario), START, seconds - 60 * AFTER, directory)
        exporter = make_exporter(simulation, clock, directory)
        for tick in range(round(seconds / INTERVAL)):
            exporter.tick()
            now = tick * INTERVAL
            if now % SCRAPE_SECONDS == 0:
                scrapes.add(round(1000 * (START + now)), exporter.scrape("text").decode(), read)
            clock.advance(INTERVAL)
        exporter.close()
    return list(scrapes.series())
