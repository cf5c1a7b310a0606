"""The dashboards against the published schemas of several versions of Grafana.

The schemas come as models of grafana-foundation-sdk, which are generated from them: what a model does not
know is lost when a dashboard is read into it and written again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import SECONDS

REPOSITORY = Path(__file__).parents[2]
MODELS = REPOSITORY / ".venv" / "grafana-models"  # tests/install-grafana-models
DASHBOARDS = sorted((REPOSITORY / "grafana" / "dashboards").glob("*.json"))
# What the schemas of some versions lack, although Grafana reads it.
KNOWN_TO_GRAFANA = {
    # public/app/plugins/datasource/prometheus: an annotation's own settings, and a variable's query as text
    ".annotations.list[].step",
    ".annotations.list[].titleFormat",
    ".annotations.list[].textFormat",
    ".annotations.list[].tagKeys",
    ".annotations.list[].useValueForTime",
    ".annotations.list_val[].use_value_for_time",  # "on", as Grafana's own editor writes it
    ".templating.list[].definition",
    # the heatmap's tooltip has `show` before Grafana 10.2, and `mode` since
    ".panels[].options.tooltip.show",
    ".panels[].options.tooltip.mode",
    ".panels[].options.tooltip.showColorScale",
    ".panels[].options.footer.fields",  # of tables: "", as Grafana's own editor writes it
    ".panels[].maxPerRow",  # in the schema since 10.2
}


@pytest.mark.parametrize(
    "version", ["grafana-10.1", "grafana-10.4", "grafana-11.0", "grafana-11.6", "newest"]
)
def test_a_version_of_grafana_knows_every_field_and_its_type(version: str) -> None:
    if not (MODELS / version).exists():
        pytest.skip("needs tests/install-grafana-models")
    strange = [problem for problem in problems(version, DASHBOARDS) if problem[1] not in KNOWN_TO_GRAFANA]
    assert strange == []


def test_a_slip_of_the_pen_and_a_wrong_type_are_found(tmp_path: Path) -> None:
    if not (MODELS / "newest").exists():
        pytest.skip("needs tests/install-grafana-models")
    dashboard = json.loads(DASHBOARDS[0].read_text())
    dashboard["refesh"] = "30s"
    dashboard["panels"][0]["gridPos"]["h"] = "tall"
    dashboard["panels"][0]["options"]["colorMod"] = "value"
    spoilt = tmp_path / "spoilt.json"
    spoilt.write_text(json.dumps(dashboard))
    found = {where for _, where, _ in problems("newest", [spoilt])} - KNOWN_TO_GRAFANA
    assert found == {".refesh", ".panels[].grid_pos.h", ".panels[].options.colorMod"}


def problems(version: str, files: list[Path]) -> list[tuple[str, str, str]]:
    """Of each file: where, and what."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.support.grafana_models", *files],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(MODELS / version)},
        timeout=SECONDS,
    )
    assert told.returncode == 0, told.stderr
    inside_rows = ".panels[].panels[]"  # of rows that are collapsed
    return [
        (name, where.replace(inside_rows, ".panels[]"), what) for name, where, what in json.loads(told.stdout)
    ]
