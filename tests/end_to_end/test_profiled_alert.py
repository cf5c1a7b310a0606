"""The circle: a real Prometheus and Alertmanager fire Straggler, and the run's report names the operator.

Straggler's rule looks at times that are SPEED times as short as in real life; the run is not simulated.
"""

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

from stepscope.commands.cli import main
from stepscope.commands.run.hooks import STARTUP
from stepscope.prometheus.rules.files import render
from stepscope.prometheus.rules.options import Options
from stepscope.training.window_files import IN_RECORDING

from tests.support.actions_process import TOKEN, acting, audit
from tests.support.alertmanager import STOPPING, Alertmanager, alertmanager, configured, needs_alertmanager
from tests.support.exporter_process import ExporterProcess
from tests.support.observing import TWO_RANKS, environment_of_ranks
from tests.support.prometheus import needs_prometheus, serving
from tests.support.pytorch import needs_torch
from tests.support.slow_operator import assert_it_is_named_with_its_line, write_script
from tests.support.torch_script import EXPORTER
from tests.support.waiting import SECONDS

pytestmark = [needs_alertmanager, needs_prometheus, needs_torch]

SPEED = 60
NODE = "gpu-node-1"
PROMETHEUS = """\
global: {{scrape_interval: 250ms, evaluation_interval: 250ms}}
rule_files: ["rules/*.yml"]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["{alertmanager}"]}}]}}]}}
scrape_configs:
  - job_name: stepscope
    static_configs: [{{targets: ["{exporter}"], labels: {{instance: {node}}}}}]
"""


def prometheus_of(folder: Path, posting: Alertmanager, exporter: str) -> Path:
    (folder / "rules").mkdir(parents=True)
    for name, text in render(Options(only=("Straggler",), speed=SPEED)).items():
        if "/" not in name:
            (folder / "rules" / name).write_text(text)
    config = folder / "prometheus.yml"
    alerts, scraped = (url.removeprefix("http://") for url in (posting.url, exporter))
    config.write_text(PROMETHEUS.format(alertmanager=alerts, exporter=scraped, node=NODE))
    return config


def test_an_alert_of_straggler_has_the_slow_operator_named_with_its_line(tmp_path: Path) -> None:
    ledgers, recording = tmp_path / "ledgers", tmp_path / "recording"
    with ExitStack() as stack:
        node = stack.enter_context(acting(tmp_path, "--profile-on=Straggler"))
        changes = {**STOPPING, r"TrainingStalled\|GPUError": "Straggler", "http://localhost:9871": node.url}
        config = configured(tmp_path, "information", changes, {"actions-token": TOKEN})
        posting = stack.enter_context(alertmanager(config))
        flags = f"--ledger-dir={ledgers}", f"--recording.dir={recording}"
        exporter = stack.enter_context(ExporterProcess(*flags))
        prometheus = prometheus_of(tmp_path / "prometheus", posting, exporter.url)
        stack.enter_context(serving(prometheus, tmp_path / "data"))
        hooked = {
            "PYTHONPATH": os.pathsep.join([str(STARTUP), EXPORTER]),
            "STEPSCOPE_INSTRUMENT": "1",
            "STEPSCOPE_LEDGER_DIR": str(ledgers),
            "STEPSCOPE_PROFILE_DIR": str(recording / IN_RECORDING),
        }
        training = [*TWO_RANKS, str(write_script(tmp_path))]
        subprocess.run(training, env=environment_of_ranks() | hooked, timeout=SECONDS, check=True)
    decision, *requests = audit(tmp_path)
    assert (decision["decision"], decision["ranks"]) == ("profile", [1, 0])
    assert [(each["event"], each["rank"], each["result"]) for each in requests] == [
        ("request", 1, "sent"),
        ("request", 0, "sent"),
    ]
    assert main(["report", str(recording)]) == 0
    assert_it_is_named_with_its_line(recording)
