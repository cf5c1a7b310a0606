"""`stepscope run --profiler-config`: SageMaker's settings, in the forms that its API and its SDK write."""

import json
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.run.profiler_config import ProfilerConfig, read_profiler_config
from stepscope.common.errors import UserError
from stepscope.training.window_plans import parse_plans

from tests.support.observing import Observed
from tests.support.waiting import wait_until

NOW = 1_800_000_000.0


def read(folder: Path, document: Any) -> ProfilerConfig:
    path = folder / "config.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    config = read_profiler_config(path, NOW)
    assert all(parse_plans(window) for window in config.windows)
    return config


def parts(**given: Any) -> dict[str, Any]:
    return {"ProfilingParameters": given}


def job_with(**parameters: str) -> dict[str, Any]:
    """A part of describe-training-job's answer, whose only rule has these parameters."""
    rule = {"RuleConfigurationName": "R", "RuleParameters": {"rule_to_invoke": "CPUBottleneck", **parameters}}
    return {"ProfilerConfig": {}, "ProfilerRuleConfigurations": [rule], "DebugRuleConfigurations": []}


def test_steps_and_interval_are_followed_as_the_sdk_writes_them(tmp_path: Path) -> None:
    """Numbers may be strings, parts are strings of JSON with a comma too many."""
    config = read(
        tmp_path,
        {
            "TrainingJobName": "imdb",
            "ProfilerConfig": {
                "ProfilingIntervalInMilliseconds": 200,
                "ProfilingParameters": {
                    "DetailedProfilingConfig": '{"StartStep": 2, "NumSteps": "7", }',
                    "DataloaderProfilingConfig": '{"MetricsRegex": ".*", }',
                },
            },
        },
    )
    assert config == ProfilerConfig(0.2, ("2:8",), ())


def test_names_are_read_without_case_and_parts_may_be_objects(tmp_path: Path) -> None:
    config = read(tmp_path, parts(DETAILEDProfilingConfig={"startstep": 4}))
    assert config == ProfilerConfig(None, ("4:4",), ())
    assert read(tmp_path, {}) == read(tmp_path, job_with()) == ProfilerConfig(None, (), ())


def test_python_functions_come_after_operators(tmp_path: Path) -> None:
    same = {"StartStep": 5, "NumSteps": 3}
    config = read(tmp_path, parts(DetailedProfilingConfig=same, PythonProfilingConfig=same))
    assert config.windows == ("5:7", "9:11,python")
    assert config.notes == (
        "PythonProfilingConfig: its window is after that of the operators: one profiler at a time",
    )
    later = {"StartStep": 9, "NumSteps": 3}
    config = read(tmp_path, parts(DetailedProfilingConfig=same, PythonProfilingConfig=later))
    assert (config.windows, config.notes) == (("5:7", "9:11,python"), ())
    timed = {"DurationInSeconds": 10}
    config = read(tmp_path, parts(DetailedProfilingConfig=timed, PythonProfilingConfig=timed))
    assert config.windows == ("at=1ms,for=10000ms", "at=11001ms,for=10000ms,python")


@pytest.mark.parametrize(
    ("timer", "kind"),
    [("default", "python"), ("CPU_TIME", "python=cpu"), ("off_cpu_time", "python=off-cpu")],
)
def test_the_timer_of_python_functions_is_followed(timer: str, kind: str, tmp_path: Path) -> None:
    config = read(tmp_path, parts(PythonProfilingConfig={"StartStep": 3, "cProfileTimer": timer}))
    assert config == ProfilerConfig(None, (f"3:3,{kind}",), ())


def test_a_time_is_that_of_the_calendar(tmp_path: Path) -> None:
    window = {"StartTimeInSecSinceEpoch": NOW + 90, "Duration": 5}
    config = read(tmp_path, parts(DetailedProfilingConfig=window))
    assert config == ProfilerConfig(None, (f"at=@{NOW + 90:.3f},for=5000ms",), ())
    over = {"StartTimeInSecSinceEpoch": NOW - 90, "DurationInSeconds": 300}
    config = read(tmp_path, parts(DetailedProfilingConfig=over))
    assert config.windows == ("at=1ms,for=59000ms",)
    assert [note.partition(": ")[2] for note in config.notes] == [
        "is over: its window begins with the first step",
        "a window takes up to 59 s",
    ]


@pytest.mark.parametrize(
    ("document", "note"),
    [
        ({"S3OutputPath": "s3://b/p"}, "S3OutputPath: nothing is uploaded"),
        (parts(LocalPath="/opt/ml"), "LocalPath: use --out"),
        (
            parts(RotateMaxFileSizeInBytes="1", FileOpenFailThreshold="50"),
            "RotateMaxFileSizeInBytes, FileOpenFailThreshold: files of a recording are not rotated",
        ),
        (parts(HorovodProfilingConfig='{"StartStep": 0}'), "HorovodProfilingConfig: set HOROVOD_TIMELINE"),
        (parts(SMDataParallelProfilingConfig="{}"), "SMDataParallelProfilingConfig: collectives of"),
        (parts(DataloaderProfilingConfig={"MetricsRegex": "a"}), "MetricsRegex: waits for data are"),
        (parts(DataloaderProfilingConfig={"StartStep": 1}), "DataloaderProfilingConfig: waits for data"),
        (parts(Colour="red"), "Colour: is not known"),
        (
            job_with(cpu_threshold="80"),
            "ProfilerRuleConfigurations: parameters of rules are not read",
        ),
        ({"ProfilerConfig": {}, "DebugHookConfig": {"S3OutputPath": "s3://b"}}, "DebugHookConfig: tensors"),
        ({"ProfilerConfig": {}, "DebugRuleConfigurations": [{}]}, "DebugRuleConfigurations: rules on"),
        (parts(DetailedProfilingConfig={"StartStep": 0}), "DetailedProfilingConfig.StartStep: a window beg"),
        (parts(DetailedProfilingConfig={"NumSteps": 9999}), "DetailedProfilingConfig.NumSteps: a window has"),
        (
            parts(PythonProfilingConfig={"NumSteps": 3, "ProfilerName": "Pyinstrument"}),
            "PythonProfilingConfig: lines of Python are sampled",
        ),
        (
            parts(PythonProfilingConfig={"NumSteps": 3, "cProfileTimer": "sun"}),
            "cProfileTimer: the times of functions include waits",
        ),
    ],
)
def test_what_is_not_followed_is_said_in_one_line(document: Any, note: str, tmp_path: Path) -> None:
    (said,) = read(tmp_path, document).notes
    assert said.startswith(note)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not an object of JSON"),
        (parts(DetailedProfilingConfig="{"), "DetailedProfilingConfig: is not JSON"),
        (parts(DetailedProfilingConfig=[]), "DetailedProfilingConfig: is not an object"),
        (parts(DetailedProfilingConfig={"StartStep": "two"}), "StartStep is 'two'; give a number"),
        (parts(DetailedProfilingConfig={"StartStep": 1e300}), "StartStep is 1e.300; give a number"),
        (parts(DetailedProfilingConfig={"StartTimeInSecSinceEpoch": 1e300}), "is 1e.300; give a number"),
        (parts(PythonProfilingConfig={"NumSteps": 10**400}), "NumSteps is 10000"),
        ({"ProfilingIntervalInMilliseconds": 0}, "ProfilingIntervalInMilliseconds must be above 0"),
        ({"DisableProfiler": True}, "disables the profiler"),
        (parts(ProfilerEnabled="false"), "disables the profiler"),
    ],
)
def test_what_is_no_profiler_config_is_refused(document: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, document)
    with pytest.raises(UserError, match="cannot be read"):
        read_profiler_config(tmp_path / "gone.json", NOW)


def test_a_run_follows_the_file_and_prints_what_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    windows = {"PythonProfilingConfig": {"StartStep": 3, "NumSteps": 2}, "LocalPath": "/opt/ml"}
    path.write_text(json.dumps({"ProfilingIntervalInMilliseconds": 250, "ProfilingParameters": windows}))
    script = "import stepscope\nfor _ in range(20):\n    with stepscope.step():\n        sum(range(99))\n"
    with Observed(tmp_path / "run", script, f"--profiler-config={path}") as observed:
        wait_until(lambda: observed.process.poll() is not None, "the end of the run")
        assert "LocalPath: use --out" in observed.said
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [(each["first"], each["last"]) for each in report["windows"]] == [(3, 4)]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["interval"] == 0.1  # --interval wins
