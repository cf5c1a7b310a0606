"""The training job of a notebook (smdebug.profiler.analysis.notebook_utils.training_job)."""

import json
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow.compute as pc

from stepscope import analysis
from stepscope.common.status import Status
from stepscope.compat.smdebug.not_served import Instead
from stepscope.compat.smdebug.profiler.algorithm_metrics_reader import S3AlgorithmMetricsReader
from stepscope.compat.smdebug.profiler.system_metrics_reader import S3SystemMetricsReader
from stepscope.report.verdict import status_of_run

# The part of ProfilingParameters that a kind of profile window is, and what else it says.
PARTS: dict[str | None, tuple[str, dict[str, str]]] = {
    "operators": ("DetailedProfilingConfig", {}),
    "python": ("PythonProfilingConfig", {"ProfilerName": "cprofile"}),
}

ENDED = {Status.FAILED: "Failed", Status.STOPPED: "Stopped"}  # SageMaker's words


class TrainingJob(Instead):
    """A run by its name, as in `stepscope report NAME`, or by its path. Raises UserError if there is none."""

    INSTEAD: ClassVar[dict[str, str]] = {  # nothing here is at AWS
        "get_sm_client": 'use boto3.client("sagemaker")',
    }

    def __init__(self, training_job_name: str, region: str | None = None) -> None:
        run = analysis.open(training_job_name)
        self.name = training_job_name
        self.profiler_s3_output_path = run.source  # which every class here accepts as its path
        self.profiler_config: dict[str, Any] = {
            "ProfilingIntervalInMilliseconds": round(1000 * run.interval),
            "ProfilingParameters": _parameters(run),
        }
        self.system_metrics_reader: S3SystemMetricsReader | None = None
        self.framework_metrics_reader: S3AlgorithmMetricsReader | None = None

    def wait_for_sys_profiling_data_to_be_available(self) -> None:
        """Waits for samples. Raises UserError if the run ends without."""
        reader = self.system_metrics_reader = S3SystemMetricsReader(self.profiler_s3_output_path)
        reader.run.wait_for_data()

    def wait_for_framework_profiling_data_to_be_available(self) -> None:
        """Waits for steps. Raises UserError if the run ends without."""
        reader = self.framework_metrics_reader = S3AlgorithmMetricsReader(self.profiler_s3_output_path)
        reader.run.wait_for_data("steps")

    def get_systems_metrics_reader(self) -> S3SystemMetricsReader | None:
        """Returns the reader of samples; None before they were waited for."""
        return self.system_metrics_reader

    def get_framework_metrics_reader(self) -> S3AlgorithmMetricsReader | None:
        """Returns the reader of steps; None before they were waited for."""
        return self.framework_metrics_reader

    def describe_training_job(self) -> dict[str, Any]:
        """Returns what is known of the fields of SageMaker's answer: name, state, times, interval."""
        run = analysis.open(self.profiler_s3_output_path)
        start, took, end = run.start, run.duration, {}
        if run.finished and start is not None and took is not None:
            end = {"TrainingEndTime": start + timedelta(seconds=took)}
        status = status_of_run(run._evaluated.analysis)
        ended = ENDED.get(status, "Completed" if run.finished else None)
        return {
            "TrainingJobName": self.name,
            "TrainingJobStatus": ended or "InProgress",
            "SecondaryStatus": ended or "Training",
            "TrainingStartTime": start,
            "ProfilerConfig": self.profiler_config,
            **end,
        }

    def get_config_and_profiler_s3_output_path(self) -> tuple[dict[str, Any], str]:
        """Returns the interval of samples with the steps of profile windows, and the run's path."""
        return self.profiler_config, self.profiler_s3_output_path


def _parameters(run: analysis.Run) -> dict[str, str]:
    """Returns the steps of the first profile window of each kind, as SageMaker's SDK has them: in JSON."""
    found: dict[str, str] = {}
    for row in run.windows().filter(pc.field("last").is_valid()).to_pylist():
        if row["kind"] in PARTS:
            part, more = PARTS[row["kind"]]
            steps = {"StartStep": row["first"], "NumSteps": row["last"] - row["first"] + 1}
            found.setdefault(part, json.dumps(steps | more))
    return found
