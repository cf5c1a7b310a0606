"""Price lists: read or refused in one line, matched with a run's nodes, and named in right-sizing."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from stepscope.commands.cli import main
from stepscope.common.errors import UserError
from stepscope.evaluation.analysis import Analysis, RunUse
from stepscope.measurements.usage import UsageRow
from stepscope.report.document import document
from stepscope.report.markdown import render_markdown
from stepscope.report.price_list import Machine, machine_of, price_of_node, read_price_list
from stepscope.report.right_sizing import Prediction, predictions

from tests.report.test_right_sizing import run
from tests.support.scenarios import WrittenScenarios

P3 = (
    Machine("p3.16xlarge", 24.48, 8, 64, 488.0, "V100", 16.0),
    Machine("p3.8xlarge", 12.24, 4, 32, 244.0, "V100", 16.0),
    Machine("p3.2xlarge", 3.06, 1, 8, 61.0, "V100", 16.0),
    Machine("g4dn.xlarge", 0.526, 1, 8, 61.0, "T4", 16.0),
)
HEADER = "name,price_per_hour,gpus,gpu,gpu_memory_gib,cores,memory_gib\n"
ROWS = [
    f"{each.name},{each.price_per_hour},{each.gpus},{each.gpu},16,{each.cores},{each.memory_gib:g}"
    for each in P3
]


def on_p3(
    gpu: int = 12, cpu: int = 10, memory: float = 20.0, model: str = "Tesla V100-SXM2-16GB"
) -> Analysis:
    """A run on a p3.8xlarge: the percents in use of each GPU, of the cores and of memory."""
    found = run(gpu=gpu, cpu=cpu, gpus=4, cores=32, fired=("LowGPUUtilization",))
    memories = [UsageRow(node, "CPU memory", "%", *(5 * [memory])) for node in found.nodes]
    return replace(
        found,
        usage=[*found.usage, *memories],
        gpus={node: [f"{number}: {model}" for number in range(4)] for node in found.nodes},
        gpu_use=[replace(use, memory_bytes=16.0 * 2**30) for use in found.gpu_use],
    )


def bill(analysis: Analysis, change: str = "fewer_gpus", price: float = 12.24) -> Prediction:
    (found,) = [
        row
        for row in predictions(analysis, price, machines=P3)
        if (row.change, row.metric) == (change, "cost")
    ]
    return found


def test_right_sizing_names_the_type_that_serves_and_its_price_replaces_the_share_of_gpus() -> None:
    found = bill(on_p3())
    assert (found.current, found.suggested) == (4, 1)
    assert found.resource == "GPUs of a node (p3.8xlarge to p3.2xlarge)"
    assert "With 1 GPU instead of 4 (p3.8xlarge to p3.2xlarge) the run would cost" in found.sentence
    assert found.measured == pytest.approx(12.24 / 6)
    assert found.low == pytest.approx(3.06 / 6)  # as long as before
    seconds = next(row for row in predictions(on_p3(), machines=P3) if row.metric == "run_seconds")
    assert found.high == pytest.approx(seconds.high / 3600 * 3.06)
    assert "p3.2xlarge has 1 GPU, 8 cores and 61 GiB for $3.06 per hour." in found.assumption
    assert "p3.8xlarge to p3.2xlarge" in render_markdown(on_p3(), 12.24, machines=P3)
    rows = document(on_p3(), 12.24, machines=P3)["predictions"]
    assert any(row["resource"] == found.resource for row in rows)


def test_fewer_cores_get_a_price_if_a_type_has_them() -> None:
    half = Machine("half", 9.0, 4, 16, 244.0, "V100", 16.0)
    rows = predictions(on_p3(gpu=90), 12.24, machines=(*P3, half))
    named = {row.metric: row for row in rows if row.change == "fewer_cores"}
    assert named["cost"].resource == "cores of a node (p3.8xlarge to half)"
    assert named["cost"].expected == pytest.approx(9.0 / 6)


@pytest.mark.parametrize(
    "analysis",
    [on_p3(cpu=40), on_p3(memory=50.0), replace(on_p3(), usage=run(cpu=10).usage)],
    ids=["its cores do not keep up", "it has too little memory", "memory was not read"],
)
def test_a_type_that_does_not_serve_is_not_named(analysis: Analysis) -> None:
    found = bill(analysis)
    assert found.resource == "GPUs of a node"
    assert found.high > found.measured  # at worst the machine costs as much


def test_the_type_of_a_run_is_the_only_one_that_looks_like_its_nodes() -> None:
    assert machine_of(on_p3(), P3) == P3[1]
    assert price_of_node(on_p3(), P3, None) == 12.24
    assert price_of_node(on_p3(), P3, 5.0) == 5.0
    assert machine_of(on_p3(model="A100"), P3) is None
    twin = replace(P3[1], name="p3.8xlarge-spot", price_per_hour=3.7)
    assert machine_of(on_p3(), (*P3, twin)) is None
    assert machine_of(on_p3(), (*P3, twin), price=3.7) == twin
    assert price_of_node(on_p3(), (*P3, twin), None) is None
    unnamed = replace(on_p3(), gpus={node: list("0123") for node in on_p3().nodes})
    assert machine_of(unnamed, P3) == P3[1]
    larger = replace(on_p3(), gpu_use=[replace(use, memory_bytes=32.0 * 2**30) for use in on_p3().gpu_use])
    assert machine_of(larger, P3) is None
    for gib, found in ((240.0, P3[1]), (64.0, P3[1]), (math.nan, P3[1]), (488.0, None)):  # less: a limit
        uses = [RunUse(node, 1.0, 32.0, 0.0, 0.0, 0.0, memory_capacity=gib * 2**30) for node in on_p3().nodes]
        assert machine_of(replace(on_p3(), run_use=uses), P3) == found


def test_a_list_is_read_from_csv_and_from_yaml(tmp_path: Path) -> None:
    table, mapping = tmp_path / "prices.csv", tmp_path / "prices.yaml"
    table.write_text(HEADER + "\n".join(ROWS) + "\n")
    assert read_price_list(table) == P3
    table.write_bytes(table.read_text().replace("\n", "\r\n").encode("utf-8-sig"))
    assert read_price_list(table) == P3, "as Excel saves it"
    mapping.write_text("- {name: cpu-only, price_per_hour: $0.5, gpus: 0, cores: 16, memory_gib: 64}\n")
    assert read_price_list(mapping) == (Machine("cpu-only", 0.5, 0, 16, 64.0),)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("p.csv", "", "p.csv: has no rows; write a row per instance type with name, price_per_hour"),
        ("p.csv", HEADER, "p.csv: has no rows"),
        ("p.csv", HEADER + "a,one,4,V100,16,32,244", "p.csv, type 1: price_per_hour='one' is not a number"),
        ("p.csv", HEADER + "a,nan,4,V100,16,32,244", "price_per_hour='nan' is not a number of 0 or more"),
        ("p.csv", HEADER + "a,1,4.5,V100,16,32,244", "gpus='4.5' is not a whole number of 0 or more"),
        ("p.csv", HEADER + ROWS[0] + "\n" + ROWS[0], "p.csv: p3.16xlarge has several rows; keep one"),
        ("p.csv", HEADER + "a,1,4,V100,16,,244", "p.csv, type 1: cores is missing; write name"),
        (
            "p.csv",
            HEADER + "a,1,4,V100,16,8,244,more",
            "p.csv, type 1: a value without a column is unknown",
        ),
        ("p.yaml", "- {name: a, cost: 3}", "p.yaml, type 1: cost is unknown; the columns are name"),
        ("p.yaml", "- {name: a", "p.yaml: is neither YAML nor, as a .csv, CSV"),
        ("p.yaml", "- name", "p.yaml, type 1: is no row; write name"),
        ("p.yaml", "name: a", "p.yaml: has no rows"),
        ("p.yaml", "- {name: [a], price_per_hour: 1, gpus: 0, cores: 1, memory_gib: 1}", "is not a name"),
        ("p.yaml", b"\xff\xfe\x00", "p.yaml: is neither YAML"),
        ("p.yaml", "- {name: 2026-02-30}", "p.yaml: is neither YAML"),
        ("p.yaml", "[" * 5000, "p.yaml: is neither YAML"),
        ("p.yaml", None, "p.yaml: cannot be read (No such file or directory)"),
    ],
)
def test_a_list_that_is_none_is_refused_in_one_line(
    tmp_path: Path, name: str, text: str | bytes | None, complaint: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as refused:
        read_price_list(file)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_report_and_a_comparison_take_the_price_of_the_run_s_type(
    scenarios: WrittenScenarios, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = scenarios.written("few-dataloaders").recording
    (cores,), (gpus,) = recording.cores.values(), recording.gpus.values()
    prices = tmp_path / "prices.yaml"
    rows = [{"name": "big", "price_per_hour": 36.0, "gpus": len(gpus), "cores": cores, "memory_gib": 1024}]
    prices.write_text(json.dumps(rows))
    place = str(scenarios.written("few-dataloaders").recording_directory)
    assert main(["report", place, "--prices", str(prices), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["price_per_node_hour"] == 36.0
    assert main(["compare", place, place, "--prices", str(prices), "--format", "json"]) == 0
    assert '"price_per_node_hour": 36.0' in capsys.readouterr().out


def test_a_wrong_list_is_refused_before_anything_is_read_or_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices, out = tmp_path / "prices.yaml", tmp_path / "run"
    prices.write_text("[]")
    for words in (["report", "nowhere"], ["compare", "a", "b"], ["run", "--out", str(out)]):
        command = ["--", "true"] if words[0] == "run" else []
        assert main([*words, "--prices", str(prices), *command]) == 2
        said = capsys.readouterr().err
        assert "prices.yaml: has no rows" in said
        assert said.count("\n") == 1
    assert not out.exists()
