"""Findings that are accepted while `trainwatch run` observes: the terminal, the live page and the report."""

from __future__ import annotations

import json
from pathlib import Path

import requests
from trainwatch.accepted import Acceptance, write_accepted

from tests.support.observing import Observed, wait_until
from tests.support.servers import SECONDS

TRAIN = """
import os, time, trainwatch
while not os.path.exists("end"):
    with trainwatch.step("train"):
        with trainwatch.component("data_wait"):
            time.sleep(0.06)
        time.sleep(0.03)
"""
FLAGS = ("--name=slow", "--live-interval=1s", "--scan-interval=1s", "--set=DataStarved.patience=10")
WARNED = "trainwatch: ▲ DataStarved: "


def test_a_finding_that_is_accepted_during_the_run_counts_neither_now_nor_at_its_end(tmp_path: Path) -> None:
    file = tmp_path / "trainwatch-runs" / "accepted.yml"
    with Observed(tmp_path / "run", TRAIN, *FLAGS) as observed:
        observed.until_said(WARNED)
        write_accepted(file, [Acceptance("DataStarved", "slow", "old disk", "2999-12-31")])
        observed.until_said("It is accepted until 2999-12-31: old disk.")
        page = tmp_path / "run" / "report.html"  # as it is served
        wait_until(lambda: "DataStarved is accepted" in page.read_text(), "the live page")
        url = f"http://{observed.address}/metrics"
        published = 'rule="DataStarved",reason="old disk",until="2999-12-31"'
        wait_until(lambda: published in requests.get(url, timeout=SECONDS).text, "the metric")
        (tmp_path / "end").touch()
        assert observed.process.wait(SECONDS) == 0
        assert "  Accepted\n    DataStarved, accepted until 2999-12-31: old disk. " in observed.said
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    (rule,) = (rule for rule in report["rules"] if rule["rule"] == "DataStarved")
    assert rule["status"] == "found"
    assert rule["accepted"] == {"reason": "old disk", "until": "2999-12-31", "by": None}
    assert all("DataStarved" not in (each["rule"], *each["also"]) for each in report["verdict"]["findings"])


def test_a_file_that_breaks_during_the_run_accepts_nothing_and_costs_no_report(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    write_accepted(file, [Acceptance("DataStarved", "slow", "old disk", "2999-12-31")])
    with Observed(tmp_path / "run", TRAIN, *FLAGS, f"--accepted={file}") as observed:
        observed.until_said("It is accepted until 2999-12-31: old disk.")
        file.write_text("- broken")
        observed.until_said(f"no finding is accepted: {file}, entry 1: write")
        (tmp_path / "end").touch()
        assert observed.process.wait(SECONDS) == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert "DataStarved" in [finding["rule"] for finding in report["verdict"]["findings"]]
