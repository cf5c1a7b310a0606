"""Two clusters in one Prometheus: jobs, instances and runs have the same names in both."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.prometheus.rules.test_existing_clusters import END, always, cores, gpu
from tests.prometheus.rules.test_straggler_rules import METRICS, straggling
from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest, Values
from tests.support.scrapes import only, scraped_steps

pytestmark = needs_prometheus

TARGET = 'job="stepscope",instance="node-a"'


def of_cluster(cluster: str, series: Mapping[str, Values]) -> dict[str, Values]:
    """The series with the label that a scrape adds."""
    return {name.replace("{", f'{{cluster="{cluster}",', 1): values for name, values in series.items()}


def test_ranks_of_a_run_of_another_cluster_are_no_peers(test: RuleTest) -> None:
    for cluster, slow in (("north", 1.6), ("south", 1.0)):
        for node, steps in enumerate(straggling(slow)):
            series = only(scraped_steps([steps], 25, "run", f"node-{node}"), *METRICS)
            samples = f'stepscope_samples_total{{job="stepscope",instance="node-{node}",run="run"}}'
            series[samples] = [30.0 * number for number in range(25)]
            test.add(of_cluster(cluster, series))
    excess = "run_instance_rank:stepscope_step_own:excess_seconds"
    test.equals(f'{excess}{{cluster="north", rank="2"}}', 360, 0.3)
    test.gives_nothing(f'{excess}{{cluster="south"}}', 360)
    test.firing("Straggler", 360, 1)
    test.firing("Straggler", 360, 1, cluster="north", instance="node-2", rank="2")


def test_an_exporter_is_down_in_its_own_cluster_only(rendered: Callable[..., Path], tmp_path: Path) -> None:
    trained: Values = [30.0 * number for number in range(40)]
    test = RuleTest(rendered() / "stepscope-meta.yml")
    for cluster, up in (("north", 0.0), ("south", 1.0)):
        later: Values = [float("nan"), *[None] * 39] if not up else [1200.0] * 40
        series: dict[str, Values] = {
            f"up{{{TARGET}}}": [*[1.0] * 40, *[up] * 40],
            f'stepscope_samples_total{{{TARGET},run="run"}}': [*trained, *later],
        }
        test.add(of_cluster(cluster, series))
    test.firing("ExporterDown", 900, 1)
    test.firing("ExporterDown", 900, 1, cluster="north", run="run")
    test.run(tmp_path)


def test_a_run_failed_by_the_exception_of_its_own_cluster(
    rendered: Callable[..., Path], tmp_path: Path
) -> None:
    test = RuleTest(rendered() / "stepscope-meta.yml")
    for cluster, raised in (("north", ["KeyError"]), ("south", []), ("west", ["ValueError"])):
        series: dict[str, Values] = {
            f'stepscope_run_ended_info{{{TARGET},run="run",reason="exit status 1"}}': [1.0]
        }
        series |= {
            f'stepscope_run_exception_info{{{TARGET},run="run",type="{kind}"}}': [1.0] for kind in raised
        }
        test.add(of_cluster(cluster, series))
    test.firing("RunFailed", 60, 3)
    test.firing("RunFailed", 60, 1, type="KeyError", cluster="north")
    test.firing("RunFailed", 60, 1, type="ValueError", cluster="west")
    test.firing("RunFailed", 60, 1, type="", cluster="south")
    test.run(tmp_path)


def test_a_new_error_of_a_gpu_is_one_of_its_own_cluster(test: RuleTest) -> None:
    of_gpu = f'{TARGET},gpu="0"'
    counter = f'stepscope_gpu_xid_errors_total{{{of_gpu},xid="79"}}'
    for cluster, errors in (("north", [*[None] * 40, *[1.0] * 20]), ("south", [5.0] * 60)):
        series: dict[str, Values] = {
            f"stepscope_sampler_ticks_total{{{TARGET}}}": [30.0 * number for number in range(60)],
            f'stepscope_gpu_utilization_samples_count{{{of_gpu},run="run"}}': [30.0 * n for n in range(60)],
            counter: errors,
        }
        test.add(of_cluster(cluster, series))
    test.firing("GPUError", 600, 1)
    test.firing("GPUError", 600, 1, cluster="north")


def test_readings_of_other_exporters_are_joined_within_a_cluster(
    rendered: Callable[..., Path], tmp_path: Path
) -> None:
    test = RuleTest(rendered() / "optional" / "dcgm-and-node-exporter.yml")
    for cluster, busy in (("north", 0.97), ("south", 0.1)):
        test.add(of_cluster(cluster, gpu("node-a", always(5.0)) | cores("node-a", 0.1, busy)))
    test.firing("CPUBottleneck", END, 1)
    test.firing("CPUBottleneck", END, 1, cluster="north")
    test.firing("BatchSize", END, 2)  # the mean of the cores is low in both
    test.run(tmp_path)
