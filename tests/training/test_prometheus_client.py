"""StepscopeCollector in registries of the real prometheus_client, in real training processes."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.training_script import go_on, only_ledger, run_to_end, training, wait_for_line
from tests.support.waiting import SECONDS

SERVE = """
from prometheus_client import REGISTRY, CollectorRegistry, Counter, generate_latest
from stepscope.prometheus.in_process import StepscopeCollector
"""
TRAIN = """
stepscope.start(run="mine")
for _ in range(3): stepscope.record_step("train", 1.0, 1.25, 0.125)
stepscope.count("tokens", 4096)
stepscope.gauge("loss", 0.5)
"""


def samples(text: str) -> dict[tuple[str, str], float]:
    """Returns the values by name and rank; of buckets, only the last."""
    return {
        (sample.name, sample.labels.get("rank", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_own_steps_are_served_next_to_the_metrics_of_the_script(ledgers: Path) -> None:
    run = run_to_end(
        f"""{SERVE}
Counter("mine", "Of the script.").inc(7)
StepscopeCollector(){TRAIN}
sys.stdout.write(generate_latest(REGISTRY).decode())
""",
        ledgers,
    )
    kinds = {family.name: family.type for family in text_string_to_metric_families(run.output)}
    assert kinds["stepscope_step_duration_seconds"] == "histogram"
    assert kinds["stepscope_step_duration_bound_seconds"] == "unknown"
    assert (kinds["stepscope_run_counted"], kinds["stepscope_run_gauge"]) == ("counter", "gauge")
    found = samples(run.output)
    assert found["mine_total", ""] == 7
    assert found["stepscope_step_duration_seconds_count", "0"] == 3
    assert found["stepscope_step_duration_seconds_bucket", "0"] == 3  # +Inf
    assert found["stepscope_step_duration_seconds_sum", "0"] == 0.75
    assert found["stepscope_run_counted_total", "0"] == 4096
    assert found["stepscope_run_gauge", "0"] == 0.5
    assert found["stepscope_run_info", ""] == 1
    assert not any("age_seconds" in name for name, _ in found)


def test_a_scrape_does_not_make_the_process_look_dead_and_its_end_loses_no_step(ledgers: Path) -> None:
    script = f"""{SERVE}
StepscopeCollector(){TRAIN}
for _ in range(2): generate_latest(REGISTRY)
hold()
stepscope.record_step("train", 2.0, 2.5)
stepscope.finish()
sys.stdout.write(generate_latest(REGISTRY).decode())
"""
    with training(script, ledgers) as process:
        wait_for_line(process)
        with only_ledger(ledgers) as reader:
            assert reader.alive()
        go_on(process)
        output, errors = process.communicate(timeout=SECONDS)
    assert errors == ""
    assert samples(output)["stepscope_step_duration_seconds_count", "0"] == 4


def test_a_second_collector_in_a_registry_is_refused(ledgers: Path) -> None:
    run = run_to_end(
        f"""{SERVE}
stepscope.start(run="mine")
StepscopeCollector()
try: StepscopeCollector()
except ValueError as error: print(error)
""",
        ledgers,
    )
    assert "Duplicated timeseries" in run.output


@pytest.mark.parametrize("trains", [True, False])
def test_in_multiprocess_mode_any_process_serves_every_rank_of_the_run(
    ledgers: Path, tmp_path: Path, trains: bool
) -> None:
    values = tmp_path / "values"
    values.mkdir()
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(values), "STEPSCOPE_LAUNCH": "one", "WORLD_SIZE": "2"}
    worker = f"{SERVE}Counter('mine', 'Of the script.').inc(7){TRAIN}hold()"
    server = f"""{SERVE}
from prometheus_client import multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
StepscopeCollector(registry)
{TRAIN if trains else ""}
sys.stdout.write(generate_latest(registry).decode())
"""
    with training(worker, ledgers, {**environment, "RANK": "0"}) as process:
        wait_for_line(process)
        with training(server, ledgers, {**environment, "RANK": "1"}) as serving:
            output, errors = serving.communicate(timeout=SECONDS)
    assert errors == ""
    found = samples(output)
    assert found["mine_total", ""] == 7  # as prometheus_client sums it
    steps = {
        rank: value for (name, rank), value in found.items() if name.endswith("step_duration_seconds_count")
    }
    assert steps == ({"0": 3, "1": 3} if trains else {"0": 3})


def test_a_scrape_never_opens_the_own_ledger_before_the_run_has_started(
    ledgers: Path, tmp_path: Path
) -> None:
    """The lock of a file is gone as soon as its process closes any descriptor of it."""
    script = f"""{SERVE}
from stepscope.training.ledger import create_ledger
from stepscope.training.ranks import Ranks
made = create_ledger({str(ledgers)!r}, "mine", Ranks(0, 0, 1))
registry = CollectorRegistry()
StepscopeCollector(registry)
generate_latest(registry)
hold()
"""
    with training(script, ledgers, {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}) as process:
        wait_for_line(process)
        with only_ledger(ledgers) as reader:
            assert reader.alive()


def test_no_descriptor_stays_open_for_processes_that_have_ended(ledgers: Path, tmp_path: Path) -> None:
    run_to_end(TRAIN, ledgers)
    script = f"""{SERVE}
registry = CollectorRegistry()
StepscopeCollector(registry)
for _ in range(2): text = generate_latest(registry).decode()
links = [f"/proc/self/fd/{{name}}" for name in os.listdir("/proc/self/fd")]
print([name for name in map(os.readlink, filter(os.path.exists, links)) if name.startswith({str(ledgers)!r})])
sys.stdout.write(text)
"""
    run = run_to_end(script, ledgers, {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)})
    opened, _, text = run.output.partition("\n")
    assert opened == "[]"
    assert samples(text)["stepscope_step_duration_seconds_count", "0"] == 3
