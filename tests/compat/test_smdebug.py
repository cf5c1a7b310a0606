"""The notebook of a user of SageMaker Debugger, in which only the imports changed, and what is not served."""

import json
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from stepscope import analysis
from stepscope.analysis import Run, UserError
from stepscope.compat.smdebug.charts import (
    Heatmap,
    MetricsHistogram,
    StepHistogram,
    StepTimelineChart,
    TimelineCharts,
    TrainingJob,
)
from stepscope.compat.smdebug.frames import (
    PandasFrame,
    PandasFrameAnalysis,
    PT_dataloader_analysis,
    Resource,
    StatsBy,
)
from stepscope.compat.smdebug.profiles import (
    Metrics,
    PyinstrumentAnalysis,
    PythonProfileModes,
    cProfileAnalysis,
)
from stepscope.compat.smdebug.readers import (
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
    TimeUnits,
    us_since_epoch_to_human_readable_time,
)
from stepscope.compat.smdebug.timelines import MergedTimeline
from stepscope.runs.model import LineTime, ThreadTime
from stepscope.runs.recording.writer import RecordingWriter

from tests.analysis.test_moments import of, trained_and_evaluated
from tests.support.chrome_trace import ChromeTrace, read_chrome_trace
from tests.support.debugger_output import START, DebuggerDirectory, event, write_training_job
from tests.support.environment import unobserved
from tests.support.notebooks import executed, said_by_code, with_parameters
from tests.support.processes import ran
from tests.support.profile_windows import recording_with_windows, with_python_window
from tests.support.recording import sample
from tests.support.run_folder import recorded
from tests.support.source import START as RUN_START
from tests.support.source import node_samples, node_steps

NOTEBOOK = Path(__file__).with_name("debugger_notebook.ipynb")
SCRIPT = Path(__file__).parents[1] / "analysis" / "imdb_like.py"
SECONDS, CORES, GPUS = 320.0, 4, 2  # of the job of Debugger
NAN = float("nan")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Debugger has written of a job on one node: 4 cores, 2 GPUs, and steps from second 10 on."""
    place = tmp_path_factory.mktemp("jobs") / "my-job" / "profiler-output"
    write_training_job(place, nodes=1, seconds=SECONDS)
    return place


def check(notebook: dict[str, Any], *, gpus: bool) -> dict[str, str]:
    """Each cell shows what its call is for."""
    said = said_by_code(notebook)
    charts = {code: words for code, words in said.items() if "vega" in words}
    drawing = ("Histogram(", "Chart(", "Charts(", "Heatmap(", "plot_detailed", "update_data")
    assert list(charts) == [code for code in said if any(word in code for word in drawing)]
    assert "readings of cores, the first ProfilerSystemEvent(timestamp=" in "".join(said.values())
    assert any("Step:ModeKeys.TRAIN</td>" in words for words in said.values())
    frame = next(words for code, words in said.items() if "groupby" in code)
    assert "cpu0" in frame
    assert ("GPUUtilization" in frame) is gpus
    assert "duration_p95_us" in next(words for code, words in said.items() if "get_step_statistics" in code)
    by_step = next(words for code, words in said.items() if "by_step" in code)
    assert by_step.split()[2] == "3"
    assert "timeline.json.gz" in next(words for code, words in said.items() if "merge_timeline(" in code)
    return said


def test_each_cell_runs_over_a_recording_of_cores_by_the_name_of_the_run(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "stepscope", "run", "--no-status-line", "--name", "imdb"]
    command = [*run, "--", sys.executable, str(SCRIPT), "--slow", "map"]
    ran(command, cwd=tmp_path, env=unobserved(), check=True)
    said = check(executed(with_parameters(NOTEBOOK), tmp_path), gpus=False)
    python = next(words for code, words in said.items() if "print_top_n" in code)
    assert "imdb_like.py:" in python.splitlines()[0]
    steps = next(words for code, words in said.items() if "StepHistogram(" in code)
    assert "seconds of forward in a train step" in steps
    missing = next(words for code, words in said.items() if "MetricsHistogram(" in code)
    assert "has no gpu_utilization_ratio" in missing


@pytest.mark.trial
def test_each_cell_runs_over_the_output_of_debugger(tmp_path: Path, job: Path) -> None:
    notebook = with_parameters(NOTEBOOK)
    cells = notebook["cells"]
    parameters = next(cell for cell in cells if cell["metadata"].get("tags") == ["parameters"])
    parameters["source"].append(f"\ntraining_job_name = {str(job)!r}")
    notebook["cells"] = [cell for cell in cells if cell["metadata"].get("tags") != ["recordings"]]
    assert len(notebook["cells"]) == len(cells) - 1
    check(executed(notebook, tmp_path), gpus=True)


def test_the_imports_of_the_notebook_are_those_of_the_client_library_below_another_name() -> None:
    code = "".join("".join(cell["source"]) + "\n" for cell in json.loads(NOTEBOOK.read_text())["cells"])
    imports = [line for line in code.splitlines() if line.startswith("from ")]
    assert len(imports) == 11
    assert all(line.startswith("from stepscope.compat.smdebug.profiler.") for line in imports)


@pytest.mark.parametrize(
    "line",
    [
        "from X import LocalAlgorithmMetricsReader, S3SystemMetricsReader",
        "from X.algorithm_metrics_reader import S3AlgorithmMetricsReader",
        "from X.analysis.notebook_utils import MetricsHistogram, StepHistogram, TrainingJob",
        "from X.analysis.utils.pytorch_dataloader_analysis import PT_dataloader_analysis",
        "from X.metrics_reader_base import MetricsReaderBase",
        "from X.python_profile_utils import PythonProfileModes, StepPhase",
        "from X.system_metrics_reader import LocalSystemMetricsReader",
        "from X.utils import TimeUnits",
        "import X.analysis.notebook_utils.step_timeline_chart as s; s.StepTimelineChart",
        "import X; X.analysis.utils.pandas_data_analysis.StatsBy",
    ],
)
def test_other_modules_of_the_client_library_are_there_too(line: str) -> None:
    exec(line.replace("X", "stepscope.compat.smdebug.profiler"), {})


def test_readings_and_steps_are_events_with_debugger_s_names_and_numbers(job: Path) -> None:
    reader = LocalSystemMetricsReader(str(job))
    readings = reader.get_events(START, START + 0.75, TimeUnits.SECONDS)
    assert sorted({event.timestamp for event in readings}) == pytest.approx([START, START + 0.5], abs=0.02)
    busy = [event for event in readings if (event.dimension, event.name) == ("CPUUtilization", "cpu0")]
    assert [(event.type, event.value, event.node_id) for event in busy] == [("cpu", 98.0, "algo-1")] * 2
    idle = [event.value for event in readings if (event.dimension, event.name) == ("GPUUtilization", "gpu0")]
    assert idle == [4.0, 4.0]
    assert {event.type for event in reader.get_events(0, 0, event_type="gpu")} == {"gpu"}
    last = reader.get_timestamp_of_latest_available_file()
    assert (last - reader.get_timestamp_of_first_available_file()) / 1e6 == pytest.approx(SECONDS - 0.5, 0.01)

    steps = LocalAlgorithmMetricsReader(str(job)).get_events_by_step(3, 5)
    assert [event.event_args["step_num"] for event in steps] == [3, 4, 5]
    assert {event.event_name for event in steps} == {"Step:ModeKeys.TRAIN"}
    assert steps[0].duration / 1e6 == pytest.approx(0.75)  # with the wait for its batch


def test_frames_have_debugger_s_columns_and_their_statistics_its_units(job: Path) -> None:
    frame = PandasFrame(str(job))
    system, framework = frame.get_all_system_metrics(), frame.get_all_framework_metrics()
    columns = ["timestamp", "timestamp_us", "value", "system_metric", "dimension", "nodeID", "type"]
    assert list(system) == columns
    assert {"start_time", "end_time_us", "framework_metric", "step", "process", "nodeID"} <= set(framework)
    assert system["timestamp"][0].startswith("2020-09-13T12:27:00:0")
    assert set(frame.get_all_system_metrics(["gpu1"])["value"]) == {60.0, 50.0}  # and its memory
    analysis = PandasFrameAnalysis(system, framework)
    steps = analysis.get_step_statistics(StatsBy.PROCESS).to_dict("records")
    assert [row["process"] for row in steps] == ["Step:ModeKeys.TRAIN"]
    assert steps[0]["duration_max_us"] == pytest.approx(1.75e6)
    use = analysis.get_utilization_stats(Resource.GPU).to_dict("records")
    assert [(row["Resource"], row["utilization_min"], row["utilization_max"]) for row in use] == [
        ("gpu", 4.0, 60.0)
    ]
    ranges = analysis.get_device_usage_stats(Resource.CPU).to_dict("records")
    samples = 2 * SECONDS
    assert (ranges[0][(90, 100)], ranges[0][(0, 10)]) == (samples, 3 * samples)
    job_statistics = analysis.get_job_statistics()
    assert job_statistics["initialization"] / 1e6 == pytest.approx(9.75, abs=0.02)  # to the first wait
    shares = [job_statistics[f"{name}_%"] for name in ("initialization", "training_loop", "finalization")]
    assert sum(shares) == pytest.approx(100)


def test_a_step_that_a_restarted_run_made_again_is_another_step() -> None:
    rows = [
        {"framework_metric": "Step", "step": step, "process": rank, "nodeID": "algo-1"}
        | {"start_time_us": begin + step * 10, "end_time_us": begin + step * 10 + 10 + rank}
        for begin, steps in ((0, 3), (1000, 2))
        for rank in (0, 1)
        for step in range(steps)
    ]
    (row,) = (
        PandasFrameAnalysis(None, import_module("pandas").DataFrame(rows))
        .get_step_statistics()
        .to_dict("records")
    )
    assert (row["duration_min_us"], row["duration_max_us"]) == (11, 11)


def test_what_is_wanted_and_not_there_is_named_with_what_there_is(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = PandasFrame(str(job))
    assert frame.get_all_system_metrics(["GPUUtilization", "gpu0"])["system_metric"].unique() == ["gpu0"]
    assert "no system metric is GPUUtilization; there are: cpu0, gpu0, " in capsys.readouterr().out
    reader = LocalSystemMetricsReader(str(job))
    assert reader.get_events(0, reader.get_timestamp_of_latest_available_file(), event_type="GPU") == []
    assert "no type of events is GPU; there are: cpu, gpu, " in capsys.readouterr().out
    steps = LocalAlgorithmMetricsReader(str(job))
    assert steps.get_events(0, steps.get_timestamp_of_latest_available_file(), event_type="cpu") == []
    assert "no type of events is cpu; there are: step" in capsys.readouterr().out
    found = PandasFrameAnalysis(frame.get_all_system_metrics(), frame.get_all_framework_metrics())
    assert found.get_training_phase_intervals("Step:ModeKeys.TRAIN").size
    assert capsys.readouterr().out == ""
    assert found.get_training_phase_intervals("TRAIN").empty
    assert "no phase is TRAIN; there are: Step:ModeKeys.TRAIN" in capsys.readouterr().out


def test_a_range_in_which_no_reading_is_has_none(job: Path) -> None:
    frame = PandasFrame(str(job))
    found = PandasFrameAnalysis(frame.get_all_system_metrics(), frame.get_all_framework_metrics())
    usage = found.get_device_usage_stats(Resource.GPU, [(200, 300), (0, 100)])
    assert list(usage.columns) == ["type", "nodeID", (0, 100), (200, 300)]
    assert usage[(200, 300)].tolist() == [0]
    assert usage[(0, 100)].tolist() == [GPUS * round(2 * SECONDS)]


def test_a_phase_has_its_interval_and_its_utilization(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained_and_evaluated()
    monkeypatch.setattr("stepscope.analysis.open", lambda _: run)
    frame = PandasFrame("imdb")
    analysis = PandasFrameAnalysis(frame.get_all_system_metrics(), frame.get_all_framework_metrics())
    train, evaluation = "Step:ModeKeys.TRAIN", "Step:ModeKeys.EVAL"
    rows = analysis.get_training_phase_intervals().to_dict("records")
    between = f"Between {evaluation} and {train}"
    assert [row["phase"] for row in rows] == [
        f"Before {train}",
        train,
        between,
        evaluation,
        f"After {evaluation}",
    ]
    seconds = [(round(row["start_time_us"] / 1e6, 3), round(row["end_time_us"] / 1e6, 3)) for row in rows]
    assert seconds == [(0.0, 1.0), (1.0, 5.0), (5.0, 6.0), (6.0, 8.0), (8.0, 9.5)]
    only = analysis.get_training_phase_intervals(evaluation)
    assert list(only["phase"]) == [f"Before {evaluation}", evaluation, f"After {evaluation}"]
    assert len(analysis.get_training_phase_intervals(["Step:ModeKeys.PREDICT"])) == 0

    use = analysis.get_utilization_stats(Resource.CPU, by=StatsBy.TRAINING_PHASE).to_dict("records")
    means = {row["Training_phase"]: row["utilization_mean"] for row in use}
    assert means[evaluation] == 75.0
    assert means[train] == pytest.approx((8 * 25 + 75) / 9)  # its first sample measured what was before
    assert {row["Resource"] for row in use} == {"cpu"}


def test_steps_begin_with_their_waits_for_data(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = PandasFrame(str(job))
    waits = frame.get_all_dataloader_metrics([".*DataLoaderIter::GetNext"])
    steps = frame.get_all_framework_metrics()
    assert set(waits["framework_metric"]) == {"DataLoaderIter::GetNext"}
    assert 0 < len(waits) <= len(steps)
    assert set(waits["start_time_us"]) <= set(steps["start_time_us"])
    assert set(waits["duration_us"]) == {200_000}
    both = frame.get_all_framework_metrics(["Step:ModeKeys.TRAIN", "DataLoaderIter"])
    assert len(both) == len(waits) + len(steps)

    first = waits.to_dict("records")[0]
    moment = frame.convert_datetime_to_timestamp(first["start_time"]) + 1
    assert moment - frame.start_time == first["start_time_us"] + 1
    shares, spent, phases = frame.get_framework_metrics_by_timesteps([first["start_time"]])
    assert (shares, spent) == ({"DataLoaderIter": 1.0}, {"DataLoaderIter::GetNext": 200_000})
    assert set(phases) == {"Step:ModeKeys.TRAIN"}
    chosen = frame.get_framework_metrics_by_timesteps([first["start_time"]], ["Step:ModeKeys.TRAIN"])
    assert chosen == ({}, {}, phases)
    ends = frame.get_framework_metrics_by_begin_and_end_timesteps([first["start_time"]], [first["end_time"]])
    assert ends == ({"DataLoaderIter": 1.0}, {"DataLoaderIter::GetNext": 1.0})

    once, _ = frame.get_profiler_data_by_step(1, 2, cache_metrics=True)
    twice, _ = frame.get_profiler_data_by_step(1, 2, cache_metrics=True)
    assert len(twice) == 2 * len(once)

    capsys.readouterr()
    loading = PT_dataloader_analysis(frame)
    loading.analyze_dataloaderIter_initialization()
    assert "workers" in capsys.readouterr().out
    loading.analyze_dataloaderWorkers()
    assert "fetch" in capsys.readouterr().out
    assert loading.analyze_dataloader_getnext() is None
    assert f"{len(waits)} waits, median 200000.0" in capsys.readouterr().out
    outliers = loading.analyze_batchtime()
    assert list(outliers) == ["previous_batch_start", "start_time", "BatchTime_in_seconds"]
    assert outliers["BatchTime_in_seconds"].max() == outliers["BatchTime_in_seconds"][0] == 2.0


def parts_of_two_ranks() -> Run:
    """Two steps of 1 s per rank: 0.2 s of waiting, 0.3 s of forward and 0.4 s of backward pass each."""
    parts: dict[str, Any] = {"data_wait": 0.2, "forward": 0.3, "backward": 0.4}
    steps = [node_steps([1.0, 1.0], rank=rank, start=RUN_START + 1, **parts) for rank in (0, 1)]
    return of(node_samples(np.full((10, 2), 0.5), gpu=np.full((10, 2), [0.1, 0.9])), *steps)


@pytest.fixture
def with_parts(monkeypatch: pytest.MonkeyPatch) -> Run:
    run = parts_of_two_ranks()
    monkeypatch.setattr("stepscope.analysis.open", lambda _: run)
    return run


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    charts: list[Any] = []
    monkeypatch.setattr("IPython.display.display", charts.append)
    return charts


@pytest.mark.usefixtures("with_parts")
def test_parts_of_steps_are_framework_metrics_one_after_the_other() -> None:
    frame = PandasFrame("imdb")
    forward, backward = "Forward-node", "Backward(post-forward)-node"
    rows = frame.get_all_framework_metrics([forward, backward, "DataLoaderIter"]).to_dict("records")
    of_first = [row for row in rows if (row["step"], row["pid"]) == (1, 0)]
    times = [(row["framework_metric"], row["start_time_us"], row["end_time_us"]) for row in of_first]
    assert times == [
        ("DataLoaderIter::GetNext", 1_000_000, 1_200_000),
        (forward, 1_200_000, 1_500_000),
        (backward, 1_500_000, 1_900_000),
    ]
    assert of_first[0]["process"] == "DataLoaderIter"
    assert len(rows) == 3 * 4
    _, some = frame.get_profiler_data_by_time(
        frame.start_time, frame.start_time + 1_400_000, selected_framework_metrics=[forward]
    )
    assert set(some["framework_metric"]) == {forward}
    assert len(some) == 2  # of the first steps

    at = us_since_epoch_to_human_readable_time(frame.start_time + 1_600_000)
    shares, spent, phases = frame.get_framework_metrics_by_timesteps([at])
    assert (shares, spent) == ({backward: 1.0}, {backward: 2 * 400_000})
    assert phases == {"Step:ModeKeys.TRAIN": 2_000_000}
    begin = us_since_epoch_to_human_readable_time(frame.start_time + 1_000_000)
    by_kind, by_name = frame.get_framework_metrics_by_begin_and_end_timesteps([begin], [at])
    assert by_name == {"DataLoaderIter::GetNext": 0.5, forward: 0.75, backward: 1.0}
    assert set(by_kind) == {"DataLoaderIter", forward, backward}


def test_operators_of_profile_windows_and_events_of_debugger_are_framework_metrics(
    tmp_path: Path, job: Path
) -> None:
    operators = PandasFrame(str(recording_with_windows(tmp_path))).get_all_framework_metrics(
        ["cpu_functions"]
    )
    assert set(operators["framework_metric"]) == {"aten::linear", "aten::addmm", "aten::index_put_"}
    assert set(operators["pid"]) == {0, 1}
    assert set(operators["step"]) == {-1}
    frame = PandasFrame(str(job))
    (kernel,) = frame.get_all_framework_metrics(["volta_sgemm"]).to_dict("records")
    assert (kernel["process"], kernel["nodeID"]) == ("gpu_functions-dev:0", "algo-1")
    assert kernel["end_time_us"] - kernel["start_time_us"] == 300_000
    (workers,) = frame.get_all_framework_metrics(["DataLoaderIterInitialize"]).to_dict("records")
    assert workers["end_time_us"] - workers["start_time_us"] == 500_000


def test_events_shorter_than_a_microsecond_have_no_share(tmp_path: Path) -> None:
    directory = DebuggerDirectory(tmp_path / "job" / "profiler-output")
    directory.write_events([event("cpu_functions", "mark", 0.5, 0.0)])
    frame = PandasFrame(str(directory.root))
    ends = [us_since_epoch_to_human_readable_time(frame.start_time + shift) for shift in (-1, 1)]
    found = frame.get_framework_metrics_by_begin_and_end_timesteps(ends[:1], ends[1:], ["mark"])
    assert found == ({"cpu_functions": 0.0}, {"mark": 0.0})


def test_a_reader_with_a_cache_reads_the_run_once_until_it_is_refreshed(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []
    read = Run.iter_samples

    def counting(self: Run, *arguments: Any, **keywords: Any) -> Any:
        reads.append(arguments)
        return read(self, *arguments, **keywords)

    monkeypatch.setattr(Run, "iter_samples", counting)
    between = (START + 1.0, START + 2.0, TimeUnits.SECONDS)
    plain, cached = (LocalSystemMetricsReader(str(job), use_in_memory_cache=cache) for cache in (False, True))
    expected = plain.get_events(*between)
    once = len(reads)
    assert expected
    assert plain.get_events(*between) == expected
    assert len(reads) == 2 * once
    reads.clear()
    assert cached.get_events(*between) == cached.get_events(*between) == expected
    assert len(reads) == once
    cached.refresh_event_file_list()
    assert cached.get_events(*between) == expected
    assert len(reads) == 2 * once
    reads.clear()
    frames = [PandasFrame(str(job), use_in_memory_cache=cache) for cache in (False, True)]
    times = (frames[0].start_time + 10_000_000, frames[0].start_time + 12_000_000)
    (readings, steps), (same, same_steps) = (frame.get_profiler_data_by_time(*times) for frame in frames)
    assert len(steps)
    assert readings.equals(same)
    assert steps.equals(same_steps)
    reads.clear()
    frames[1].get_all_system_metrics()
    assert not reads


def test_events_may_be_those_of_some_files(tmp_path: Path, job: Path) -> None:
    reader = LocalAlgorithmMetricsReader(str(recording_with_windows(tmp_path)))

    def names(reader: LocalAlgorithmMetricsReader, *suffixes: str) -> set[str]:
        return {event.event_name for event in reader.get_events(0, 0, file_suffix_filter=suffixes)}

    assert names(reader, "trace.json.gz") == {"aten::linear", "aten::addmm", "aten::index_put_"}
    assert {"Step:ModeKeys.TRAIN", "Forward-node"} <= names(reader, "pythontimeline.json")
    assert not names(reader, "pythontimeline.json") & names(reader, "trace.json.gz")
    assert names(reader, "horovod_timeline.json") == names(reader) == set()
    of_job = LocalAlgorithmMetricsReader(str(job))
    assert {"volta_sgemm", "Step:ModeKeys.TRAIN"} <= names(of_job, "_pythontimeline.json")
    assert names(of_job, "model_timeline.json") == set()


def test_a_merged_timeline_has_the_files_and_system_metrics_that_are_wanted(
    tmp_path: Path, with_samples: Path
) -> None:
    def written(suffixes: list[str] | None, **wanted: Any) -> ChromeTrace:
        timeline = MergedTimeline(str(with_samples), suffixes, str(tmp_path / "new"))
        timeline.merge_timeline(1, 4, "step", **wanted)
        return read_chrome_trace(tmp_path / "new" / "timeline.json.gz")

    every = written(None)
    rows = {each.track for each in every.slices}
    assert {"Steps", "CPU thread 100", "node-a GPU 0 (%) below 85 %"} <= rows
    assert ("Node node-a", "GPU 0 (%)") in every.counters
    low = every.track("Findings", "node-a GPU 0 (%) below 85 %")
    assert [each.name for each in low] == ["Low GPU utilisation"]
    steps = written(["pythontimeline.json"], sys_metrics_filter=None)
    assert "CPU thread 100" not in {each.track for each in steps.slices}
    assert steps.track("Rank 0 on node-a", "Steps")
    assert not steps.counters
    operators = written(["trace.json.gz"], sys_metrics_filter={})
    assert {each.track for each in operators.slices} == {"CPU thread 100"}


@pytest.fixture
def with_samples(tmp_path: Path) -> Path:
    """A recording with profile windows, and samples of GPUs below 85 %."""
    recording = tmp_path / "recording"
    recording.mkdir()
    recording_with_windows(recording)
    samples = RecordingWriter(recording, "node-a", 0.5, "bert-1")
    for tick in range(20):
        samples.sample(sample(tick))
    samples.close()
    return recording


@pytest.mark.usefixtures("with_parts")
def test_histograms_of_steps_may_be_of_their_parts(shown: list[Any]) -> None:
    StepHistogram(LocalAlgorithmMetricsReader("imdb")).plot(select_metrics=["Forward-node"])
    (chart,) = shown
    rows = chart.to_dict()["data"]["values"]
    assert {(row["rank"], round(row["seconds"], 2)) for row in rows if row["count"]} == {(0, 0.3), (1, 0.3)}


@pytest.mark.usefixtures("with_parts")
def test_selected_events_are_devices_or_their_mean(shown: list[Any]) -> None:
    readings, steps = LocalSystemMetricsReader("imdb"), LocalAlgorithmMetricsReader("imdb")

    def rows(draw: Callable[[], Any], name: str = "row") -> set[str]:
        shown.clear()
        draw()
        return {str(row[name]) for chart in shown for row in rows_of(chart.to_dict()) if name in row}

    assert rows(lambda: Heatmap(readings, select_dimensions=["GPUUtil"])) == {"GPU 0", "GPU 1", "GPU, mean"}
    only: dict[str, Any] = {"select_dimensions": ["GPUUtil", "CPUUtil"], "select_events": ["gpu1", "total"]}
    chosen = {"GPU 1", "GPU, mean", "CPU, mean of the cores"}
    assert rows(lambda: Heatmap(readings, **only)) == chosen
    assert rows(lambda: TimelineCharts(readings, steps, **only)) == chosen
    histogram = MetricsHistogram(readings)
    assert rows(lambda: histogram.plot(select_dimensions=["CPUUtil"], select_events=["cpu1"]), "device") == {
        "CPU 1"
    }
    assert rows(lambda: histogram.plot(select_events=["total"]), "from") >= {"0.5"}


@pytest.mark.usefixtures("with_parts")
def test_charts_begin_with_the_last_samples_or_steps(shown: list[Any]) -> None:
    readings, steps = LocalSystemMetricsReader("imdb"), LocalAlgorithmMetricsReader("imdb")
    TimelineCharts(readings, steps, x=4)
    times = [row["elapsed_seconds"] for row in rows_of(shown.pop().to_dict()) if "elapsed_seconds" in row]
    assert min(times) == 3.0  # of 10 samples, the last four
    StepTimelineChart(steps, width=2)
    assert {row["number"] for row in rows_of(shown.pop().to_dict())} == {2}
    StepTimelineChart(steps, width=3000)
    assert {row["number"] for row in rows_of(shown.pop().to_dict())} == {1, 2}


@pytest.mark.usefixtures("with_parts")
def test_what_ran_between_two_samples_has_the_parts_of_steps(
    shown: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    chart = TimelineCharts(LocalSystemMetricsReader("imdb"), LocalAlgorithmMetricsReader("imdb"))
    capsys.readouterr()
    chart.find_time_annotations([2, 3])  # from 1.0 s to 1.5 s
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "from 1.000 s to 1.500 s of the run:"
    assert "2.000 s in Step:ModeKeys.TRAIN_1" in said
    assert "0.600 s in Forward-node_1" in said
    shown.clear()
    chart.plot_detailed_profiler_data([2, 3])
    kinds = {row["kind"] for row in rows_of(shown[0].to_dict())}
    assert {"Step:ModeKeys.TRAIN", "DataLoaderIter", "Forward-node"} <= kinds


def rows_of(chart: Any) -> list[dict[str, Any]]:
    """The rows of all data in a chart of Vega-Lite."""
    if isinstance(chart, list):
        return [row for each in chart for row in rows_of(each)]
    if not isinstance(chart, dict):
        return []
    own = chart.get("data", {}).get("values", []) if isinstance(chart.get("data"), dict) else []
    return own + [row for name, each in chart.items() if name != "data" for row in rows_of(each)]


def test_profile_windows_are_the_job_s_profiling_parameters_and_its_python_profiles(tmp_path: Path) -> None:
    recording = recording_with_windows(tmp_path)
    functions = [["train.py:9(step)", 2, 1.5, 0.5]]
    with_python_window(recording, 0, functions)
    rows = analysis.open(recording).windows().to_pylist()
    known = [(row["rank"], row["kind"], row["first"], row["last"], row["state"]) for row in rows]
    assert (0, "operators", 2, 3, "written") in known
    assert (0, "python", 7, 8, "written") in known
    assert (1, None, 5, None, "skipped") in known
    parameters = TrainingJob(str(recording)).profiler_config["ProfilingParameters"]
    assert {part: json.loads(text) for part, text in parameters.items()} == {
        "DetailedProfilingConfig": {"StartStep": 2, "NumSteps": 2},
        "PythonProfilingConfig": {"StartStep": 7, "NumSteps": 2, "ProfilerName": "cprofile"},
    }
    profile = cProfileAnalysis(s3_path=str(recording))
    (window,) = profile.list_profile_stats().to_dict("records")
    assert (window["start_step"], window["end_step"], window["node_id"]) == (7, 8, "node-a")
    assert (recording / window["stats_path"]).is_file()
    start = window_start(recording)
    for stats in (profile.fetch_profile_stats_by_step(8), profile.fetch_profile_stats_by_time(start, start)):
        (step,) = stats.function_stats_list
        assert (step.function_name, step.total_calls) == ("train.py:9(step)", 2)
    with pytest.raises(NotImplementedError, match="a Python profile by step"):
        profile.fetch_profile_stats_by_step(9)
    with pytest.raises(NotImplementedError, match="a Python profile by time"):
        profile.fetch_profile_stats_by_time(start - 60, start - 30)


def window_start(recording: Path) -> float:
    """When the window of Python functions began, in seconds since the epoch."""
    rows = analysis.open(recording).windows().filter(pc.field("kind") == "python").to_pylist()
    start: float = rows[0]["start"].timestamp()
    return start


def test_charts_without_workers_are_of_all_nodes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [node_samples([[0.5]] * 4, gpu=[[0.5]] * 4, node=node) for node in ("a", "b")]
    run = of(*two, node_steps([1.0, 2.0]), node_steps([2.0], rank=1))
    monkeypatch.setattr("stepscope.analysis.open", lambda _: run)
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    readings, steps = LocalSystemMetricsReader("imdb"), LocalAlgorithmMetricsReader("imdb")
    drawn: tuple[Callable[[bool], Any], ...] = (
        lambda workers: Heatmap(readings, show_workers=workers),
        lambda workers: TimelineCharts(readings, steps, show_workers=workers),
        lambda workers: MetricsHistogram(readings).plot(select_dimensions=["GPU"], show_workers=workers),
        lambda workers: StepHistogram(steps).plot(show_workers=workers),
    )
    for draw, one, all_of_them in zip(
        drawn,
        ("a GPU 0", "a GPU 0", "a GPU 0", '"rank": 1'),
        ("GPU 0",) * 3 + ('"rank": "all"',),
        strict=True,
    ):
        texts = []
        for workers in (True, False):
            shown.clear()
            draw(workers)
            texts.append(json.dumps([chart.to_dict() for chart in shown]))
        assert one in texts[0]
        assert one not in texts[1]
        assert all_of_them in texts[1]


def test_the_answer_of_describe_training_job_has_state_and_times(job: Path) -> None:
    answer = TrainingJob(str(job)).describe_training_job()
    assert (answer["TrainingJobName"], answer["TrainingJobStatus"]) == (str(job), "Completed")
    assert answer["TrainingStartTime"].timestamp() == pytest.approx(START, abs=0.1)
    took = (answer["TrainingEndTime"] - answer["TrainingStartTime"]).total_seconds()
    assert took == pytest.approx(SECONDS - 0.5, abs=0.1)
    assert answer["ProfilerConfig"] == {"ProfilingIntervalInMilliseconds": 500, "ProfilingParameters": {}}


@pytest.mark.parametrize(("status", "state"), [(0, "Completed"), (1, "Failed")])
def test_a_training_job_that_failed_is_not_completed(tmp_path: Path, status: int, state: str) -> None:
    run = recorded(tmp_path, "resnet", 0, exit_status=status)
    answer = TrainingJob(str(run)).describe_training_job()
    assert (answer["TrainingJobStatus"], answer["SecondaryStatus"]) == (state, state)


def test_functions_of_a_window_are_sorted_by_what_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = recording_with_windows(tmp_path)
    with_python_window(
        recording, 0, [["data.py:3(load)", 40, 2.0, 0.5, 40], ["data.py:9(decode)", 400, 1.5, 1.5, 8]]
    )
    stats = cProfileAnalysis(s3_path=str(recording)).fetch_profile_stats_by_step(2, 8)
    capsys.readouterr()
    stats.print_top_n_functions(Metrics.TOTAL_TIME, n=1)
    assert capsys.readouterr().out.split() == ["1.5", "data.py:9(decode)"]
    stats.print_top_n_functions(by=Metrics.TOTAL_CALLS, n=1)
    assert capsys.readouterr().out.split() == ["400", "data.py:9(decode)"]
    stats.print_top_n_functions(by=Metrics.PRIMITIVE_CALLS, n=1)
    assert capsys.readouterr().out.split() == ["40", "data.py:3(load)"]
    assert list(stats.get_function_stats()["cumulative_time"]) == [2.0, 1.5]


def test_python_profiles_by_phase_are_of_sampled_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = tuple(
        LineTime(phase, "host", "train.py:4", function, "", "", "", {"running": seconds})
        for phase, function, seconds in (("initialization", "build", 3.0), ("train", "step", 2.0))
    )
    threads = [ThreadTime("node-a", 0, "training", 1, 5.0, 4.0, 0.1, 0.0, lines)]
    run = of(node_samples(np.full((4, 1), 0.5)), node_steps([1.0]), threads=threads)
    monkeypatch.setattr("stepscope.analysis.open", lambda path: {"imdb": run}[path])
    profile = cProfileAnalysis("/tmp/python_stats", s3_path="imdb")
    by_phase = profile.fetch_profile_stats_by_training_phase()
    assert list(by_phase) == [(PythonProfileModes.TRAIN,) * 2, (PythonProfileModes.PRE_STEP_ZERO,) * 2]
    by_part = profile.fetch_profile_stats_by_job_phase(node_id="node-a")
    named = {
        part: [each.function_name for each in of_part.function_stats_list]
        for part, of_part in by_part.items()
    }
    assert named == {
        "initialization": ["train.py:4(build)"],
        "training_loop": ["train.py:4(step)"],
        "finalization": [],
    }
    assert profile.fetch_pre_step_zero_profile_stats().function_stats_list[0].total_time == 3.0
    assert profile.fetch_post_hook_close_profile_stats().function_stats_list == []
    with pytest.raises(NotImplementedError, match=r"Metrics.TOTAL_CALLS is not served"):
        by_part["training_loop"].print_top_n_functions(Metrics.TOTAL_CALLS)


def test_a_call_that_cannot_be_served_names_its_twin_in_one_line(job: Path) -> None:
    frame, training_job, profile = PandasFrame(str(job)), TrainingJob(str(job)), cProfileAnalysis(str(job))
    readings, steps = (
        MetricsHistogram(LocalSystemMetricsReader(str(job))),
        LocalAlgorithmMetricsReader(str(job)),
    )
    train, evaluation = PythonProfileModes.TRAIN, PythonProfileModes.EVAL
    calls: dict[str, Callable[[], Any]] = {
        "choose from Backward(post-forward)-node": lambda: frame.get_all_framework_metrics(["Forwards"]),
        "run.loaders": lambda: frame.get_all_dataloader_metrics(["DataLoaderWorker"]),
        "boto3.client": training_job.get_sm_client,
        "run.plot.heatmap": lambda: readings.plot(select_dimensions=["Algorithm"]),
        "see run.steps()": lambda: StepHistogram(steps).plot(select_metrics=["Forward-node"]),
        "--profile 2:8,python": lambda: profile.fetch_profile_stats_by_step(2),
        "python -m pstats": profile.fetch_profile_stats_by_job_phase,
        "run.lines()": lambda: profile.fetch_profile_stats_between_modes(train, evaluation),
        "use run.lines()": lambda: PyinstrumentAnalysis(str(job)),
    }
    for twin, call in calls.items():
        with pytest.raises(NotImplementedError, match="is not served; ") as refused:
            call()
        assert twin in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_name_that_is_no_run_is_refused() -> None:
    with pytest.raises(UserError, match="no-such-job"):
        TrainingJob("no-such-job", "us-east-1")
    assert list(signature(TrainingJob).parameters) == ["training_job_name", "region"]
    assert Metrics("tottime") is Metrics.TOTAL_TIME


@pytest.mark.parametrize("kind", [LocalSystemMetricsReader, LocalAlgorithmMetricsReader])
@pytest.mark.parametrize("cache", [False, True])
def test_events_between_any_two_times_are_those_that_are_there(
    kind: type[LocalSystemMetricsReader | LocalAlgorithmMetricsReader], cache: bool, job: Path
) -> None:
    reader = kind(str(job), cache)
    every = len(reader.get_events(0, 0))
    assert every > 0
    for late in (2**52, 2.0**52, 2**63, 1e300, float("inf")):
        assert len(reader.get_events(0, late)) == every, late
        assert reader.get_events(late, late) == [], late
    assert reader.get_events(0, -5) == []
    assert reader.get_events(5, 1) == []


def test_a_name_alone_is_a_list_of_it(job: Path) -> None:
    reader = LocalAlgorithmMetricsReader(str(job))
    for name in ("pythontimeline.json", "model_timeline.json"):
        one, listed = (reader.get_events(0, 0, file_suffix_filter=each) for each in (name, [name]))
        assert one == listed
    frame = PandasFrame(str(job))
    assert len(frame.get_all_system_metrics("cpu0")) == len(frame.get_all_system_metrics(["cpu0"])) > 0
    statistics: Any = PandasFrameAnalysis(frame.get_all_system_metrics(), frame.get_all_framework_metrics())
    assert statistics.get_utilization_stats("cpu").equals(statistics.get_utilization_stats(Resource.CPU))


def of_samples(job: Path) -> Any:  # types would forbid the odd arguments
    return LocalSystemMetricsReader(str(job))


def of_steps(job: Path) -> Any:
    return LocalAlgorithmMetricsReader(str(job))


def frame_of(job: Path) -> Any:
    return PandasFrame(str(job))


def profiles(job: Path) -> Any:
    return cProfileAnalysis(str(job))


def charts(job: Path, **arguments: Any) -> TimelineCharts:
    return TimelineCharts(of_samples(job), of_steps(job), **arguments)


@cache
def drawn(job: Path) -> TimelineCharts:
    """Returns charts that no call of a test changes: drawing them takes seconds."""
    return charts(job)


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda job: of_steps(job).get_events("a", 1), "time='a': is not a number"),
        (lambda job: of_steps(job).get_events(None, None), "time=None: is not a number"),
        (lambda job: of_samples(job).get_events(0, NAN), "time=nan: is not a number"),
        (lambda job: of_steps(job).get_events(0, 1, "seconds"), "unit='seconds': choose one of TimeUnits."),
        (lambda job: of_steps(job).get_events_by_step("a", "b"), "steps 'a' to 'b': are not numbers"),
        (lambda job: of_steps(job).get_events_by_step(2**70, 2**71), "were not recorded; train has steps"),
        (lambda _: LocalSystemMetricsReader(None), "None: is no source"),  # type: ignore[arg-type]
        (lambda job: charts(job, select_dimensions=["*"]), "'*': is not a regular expression"),
        (lambda job: Heatmap(of_samples(job), select_events=["[cpu"]), "'[cpu': is not a regular expression"),
        (lambda job: StepHistogram(of_steps(job)).plot(select_metrics=["*"]), "is not a regular expression"),
        (lambda job: charts(job, x=0), "x=0: give a whole number above 0"),
        (lambda job: charts(job, starttime="x"), "time='x': is not a number"),
        (lambda job: StepTimelineChart(of_steps(job), None), "width=None: give a whole"),  # type: ignore[arg-type]
        (lambda job: drawn(job).find_time_annotations([]), "indexes=[]: give numbers of samples"),
        (lambda job: drawn(job).find_time_annotations([-1]), "indexes=[-1]: give numbers of samples"),
        (lambda job: drawn(job).find_time_annotations([10**9]), "give numbers of samples, from 0 to"),
        (lambda job: frame_of(job).get_profiler_data_by_time("a", "b"), "time='a': is not a number"),
        (lambda job: frame_of(job).get_all_dataloader_metrics(["*"]), "is not a regular expression"),
        (lambda job: frame_of(job).convert_datetime_to_timestamp("now"), "'now': is not a time"),
        (
            lambda job: frame_of(job).get_framework_metrics_by_begin_and_end_timesteps(["a"], []),
            "1 times begin and 0 end",
        ),
        (lambda job: MergedTimeline(str(job)).merge_timeline(NAN, 1, "step"), "start=nan: is not a number"),
        (lambda job: profiles(job).fetch_profile_stats_by_time("a", 1), "time='a': is not"),
        (lambda job: profiles(job).fetch_profile_stats_by_step("a"), "start_step='a': is not"),
    ],
)
def test_an_odd_argument_is_named_in_one_line(call: Callable[[Path], Any], error: str, job: Path) -> None:
    with pytest.raises(UserError) as raised:
        call(job)
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)
