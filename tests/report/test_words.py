"""Numbers and sentences of the report: true, short, with a unit."""

import pytest
from stepscope.common import words
from stepscope.common.status import Status
from stepscope.evaluation.analysis import RunCores
from stepscope.evaluation.engine import evaluate
from stepscope.measurements.counted import Counted
from stepscope.measurements.usage import UsageRow
from stepscope.report import sentences, shares
from stepscope.report.details import views
from stepscope.report.document import document
from stepscope.report.findings import Finding, findings
from stepscope.report.html import render_html
from stepscope.report.summary import at_a_glance, facts
from stepscope.report.usage import usage
from stepscope.report.verdict import verdict

from tests.report.test_html import Page
from tests.support import analysis as made
from tests.support.source import MemorySource, node_samples


@pytest.mark.parametrize(
    ("device", "text"), [("cpu", "CPU"), ("gpu0", "GPU 0"), ("GPU 3", "GPU 3"), ("tpu0", "tpu0")]
)
def test_devices_of_operators_are_written_as_elsewhere(device: str, text: str) -> None:
    assert sentences.device_name(device) == text


def percentiles(node: str, resource: str, p95: float, p50: float) -> UsageRow:
    return UsageRow(node, resource, "%", 100.0, p95, p95, p50, 0.0)


@pytest.mark.parametrize(
    ("gpu", "cpu", "sentence"),
    [
        ((99, 80), (30, 20), "The GPUs were well used: 80 % or more in half of the samples."),
        ((90, 12), (95, 50), "look at the CPU first."),
        ((60, 12), (40, 20), "GPUs and CPU were under-utilised: at or below 60 % and 40 %"),
        ((90, 12), (40, 20), "The GPUs were at or below 12 % in half of the samples; one sample of twenty"),
        (None, (99, 90), "No GPU was read; the CPU was busy: 90 % or more in half of the samples."),
        (None, (100, 100), "No GPU was read; the CPU was busy: 100 % in half of the samples."),
        (None, (66, 30), "No GPU was read; the CPU was at or below 30 % in half of the samples, 66 %"),
        (None, None, "Neither CPU nor GPU could be read."),
    ],
)
def test_usage_says_what_the_percentiles_mean(
    gpu: tuple[float, float] | None, cpu: tuple[float, float] | None, sentence: str
) -> None:
    rows = [percentiles("node-a", "CPU memory", 3, 2)]
    rows += [percentiles("node-a", "GPU", *gpu)] if gpu else []
    rows += [percentiles("node-a", "CPU", *cpu)] if cpu else []
    said = usage(made.slow_loader(usage=rows))
    assert len(said) == 1
    assert sentence in said[0]


def test_nodes_that_fared_alike_are_said_once_with_bounds_true_of_all() -> None:
    rows = [percentiles(f"node-{index}", "GPU", 99, 80 + index) for index in range(5)]
    rows += [percentiles("node-5", "GPU", 99, 10), percentiles("node-5", "CPU", 95, 50)]
    first, second = usage(made.slow_loader(usage=rows))
    assert first == (
        "On 5 of 6 nodes (node-0, node-1, …) the GPUs were well used: 80 % or more in half of the samples."
    )
    assert second.startswith("On node-5 the GPUs were at or below 10 %")


def test_a_heatmap_names_the_idlest_gpu_and_the_busiest_core() -> None:
    heatmap = made.heatmap("node-a", 2, 2, columns=2)
    heatmap.values[:] = [[10, 20], [90, None], [5, 5], [95, 99]]
    assert sentences.heatmap(heatmap) == (
        "GPUs were 15 % (GPU 0) to 90 % (GPU 1) busy on average. "
        "The busiest core, CPU 1, was 97 % busy; all 2 cores together 51 %."
    )


def test_a_heatmap_without_a_reading_says_so() -> None:
    heatmap = made.heatmap("node-a", 1, 0, columns=2)
    heatmap.values[:] = [[None, None]]
    assert sentences.heatmap(heatmap) == "No utilisation was sampled."


def test_the_run_is_split_only_where_steps_were_recorded() -> None:
    split = shares.parts_of_the_run(made.slow_loader())
    assert [(part.key, round(part.seconds, 1)) for part in split.parts] == [
        ("initialization", 21.4),
        ("training_loop", 685.6),
        ("finalization", 13.0),
    ]
    assert split.seconds == pytest.approx(720.0)
    assert shares.parts_of_the_run(made.no_steps()).parts == []
    assert "No step was recorded" in sentences.run_summary(made.no_steps())[1]


def test_a_run_that_goes_on_lasts_until_what_was_last_seen_and_has_no_finalization() -> None:
    going_on = made.slow_loader(end=None, finished=False, last_step_end=made.START + 700.0)
    assert going_on.run_seconds == pytest.approx(717.0)  # the start of the last column of samples
    assert [part.key for part in shares.parts_of_the_run(going_on).parts] == [
        "initialization",
        "training_loop",
    ]
    assert "has been observed for 11 min 57 s" in sentences.run_summary(going_on)[0]


def test_training_steps_come_before_evaluation_steps() -> None:
    analysis = made.slow_loader(steps=[made.steps(0, "eval"), made.steps(0, "train"), made.steps(1, "eval")])
    assert {phase: len(rows) for phase, rows in shares.steps_by_phase(analysis).items()} == {
        "train": 1,
        "eval": 2,
    }
    assert next(iter(shares.steps_by_phase(analysis))) == "train"
    assert [" train " in sentence for sentence in sentences.steps(analysis)[:2]] == [True, False]


def test_a_cost_beyond_the_run_is_not_given_as_a_share_of_it() -> None:
    def found(seconds: float) -> Finding:
        rule = made.rule("DataStarved", Status.FOUND, seconds_lost=seconds)
        (finding,) = findings(made.slow_loader(rules=[rule]), price=10.0)
        return finding

    assert found(360.0).cost == "50 % of the run, 6 min"
    assert found(360.0).amounts == ["6 min", "50 % of the run", "$1.00"]
    assert found(5000.0).cost == "1 h 23 min"
    assert found(5000.0).amounts == ["1 h 23 min", "of all ranks and GPUs", "$2.00"]
    assert (found(0.0).cost, found(0.0).amounts) == ("", [])


def test_an_overview_counts_neither_as_judged_nor_as_healthy() -> None:
    analysis = made.slow_loader(rules=[made.rule(), made.rule("OverallSystemUsage")])
    assert verdict(analysis).sentences == ["Healthy: 1 rule judged, nothing found."]
    assert sentences.rules(analysis) == "1 rule: 1 healthy."


def test_loading_without_a_watched_loader_says_how_to_watch_one() -> None:
    assert "`stepscope.watch(loader)`" in sentences.loading(made.no_steps())[0]


def test_loading_in_the_training_process_itself_is_said() -> None:
    said = sentences.loading(made.slow_loader(loaders=[made.loader(workers=0)]))
    assert "The loader has 0 workers (it loads in the training process itself)." in said


@pytest.mark.parametrize(
    ("core_wait", "sentence"),
    [
        (0.0, "computed 10 % of the time; the rest it waited, for storage or for a free core."),
        (
            80.0,
            "computed 10 % of the time and waited for a free core 80 %; what remains it waited for",
        ),
    ],
)
def test_workers_that_wait_for_a_core_are_told_from_those_that_wait_for_storage(
    core_wait: float, sentence: str
) -> None:
    fetches = {"fetch_seconds": 100.0, "fetch_cpu_seconds": 10.0, "fetch_core_wait_seconds": core_wait}
    said = sentences.loading(made.slow_loader(loaders=[made.loader() | fetches]))
    assert sentence in said[-1]


def test_one_step_alone_gets_no_percentiles() -> None:
    alone = made.slow_loader(steps=[made.steps(count=1)], rules=[])
    assert sentences.steps(alone) == [
        f"One train step was recorded; it took {words.duration(alone.steps[0].mean)}."
    ]


def test_throughput_and_mfu_are_on_the_first_screen_and_in_the_json() -> None:
    counts = [Counted("tokens", 1.2e6, 3400.0), Counted("flops", 6e18, 1.7e16)]
    analysis = made.slow_loader(counted=counts, flops_utilisation=0.423)
    shown = {figure.name: (figure.value, figure.note) for figure in at_a_glance(analysis)}
    assert shown["Throughput"] == ("3400 tokens/s", "1\u202f200\u202f000 tokens in all")
    assert shown["MFU"] == ("42 %", "of the peak that the script gives")
    assert dict(facts(analysis))["Counted"] == (
        "1\u202f200\u202f000 tokens (3400 per second) and 6e+18 flops (1.7e+16 per second)"
    )
    said = document(analysis)["run"]
    assert said["counted"][0] == {"name": "tokens", "total": 1.2e6, "per_second": 3400.0}
    assert said["mfu"] == 0.423
    assert {"Throughput", "MFU"}.isdisjoint(figure.name for figure in at_a_glance(made.slow_loader()))


def test_ranks_that_were_not_seen_are_said() -> None:
    assert dict(facts(made.slow_loader(ranks=3, world_size=8)))["Ranks"] == "3 of 8 seen"


def test_the_last_gauges_are_facts_with_the_framework_s_step_epoch_and_loss_first() -> None:
    gauges = {"loss": 0.1234, "rate": float("nan"), "epoch": 3.0, "global_step": 12000.0}
    said = "global_step 12\u202f000, epoch 3, loss 0.123 and rate NaN"
    assert dict(facts(made.slow_loader(gauges=gauges)))["Gauges"] == said
    assert document(made.slow_loader(gauges=gauges))["run"]["gauges"] == gauges | {"rate": None}
    many = {f"g{n}": 1.0 for n in range(20)}
    assert dict(facts(made.slow_loader(gauges=many)))["Gauges"].endswith("g7 1 and 12 more")
    assert "Gauges" not in dict(facts(made.slow_loader()))


def test_gpus_are_counted_by_model() -> None:
    gpus = {"a": ["0: H100", "1: H100"], "b": ["0: A100"]}
    assert dict(facts(made.slow_loader(gpus=gpus)))["GPUs"] == "2 × H100 and 1 × A100"


def test_the_first_screen_shows_dashes_for_what_is_missing() -> None:
    figures = {figure.name: figure for figure in at_a_glance(made.no_steps())}
    assert (figures["Steps"].value, figures["Steps"].note) == ("–", "none recorded")
    assert figures["Waiting for data"].value == "–"
    gpu = {figure.name: figure for figure in at_a_glance(made.no_gpu())}["GPU in use"]
    assert (gpu.value, gpu.note) == ("–", "no GPU was seen")


def test_the_first_screen_shows_the_run_s_own_use_of_cores_that_others_fill() -> None:
    cores = [RunCores("node-a", allowed=2.0, own=0.01, others=1.98)]
    figures = {figure.name: figure for figure in at_a_glance(made.slow_loader(run_cores=cores))}
    cpu = figures["CPU in use"]
    assert (cpu.value, cpu.note) == ("0.5 %", "of the 2 cores it may use; others 99 %")


def test_parameters_that_were_changed_are_said_where_the_measuring_is() -> None:
    stricter = made.rule(parameters={**made.PARAMETERS["CPUBottleneck"], "cpu_threshold": 80})
    assert "Changed parameters: `CPUBottleneck.cpu_threshold=80`." in sentences.measured(
        made.slow_loader(rules=[stricter])
    )
    assert "default parameters" in sentences.measured(made.slow_loader(rules=[made.rule()]))[2]


def test_heat_that_was_not_read_and_memory_that_was_not_judged_do_not_look_healthy() -> None:
    run = evaluate(MemorySource(node_samples([[0.5]] * 4, [[0.5]] * 4, gpu_memory=[[0.99]] * 4)))
    said = {view.id: " ".join(view.sentences) for view in views(run)}
    assert said["health"].startswith("No GPU reported how long heat throttled it.")
    assert said["memory"] == "No GPU used more than 99 % of its memory."
    assert "GPU 0 – – – " in Page(render_html(run)).texts["details"]
