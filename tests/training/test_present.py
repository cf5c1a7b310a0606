"""What a ledger says about the present moment, and the gauges that a script publishes."""

import math
import time
from pathlib import Path

import pytest
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.training import layout

from tests.support.training_script import (
    go_on,
    only_ledger,
    run_to_end,
    training,
    wait_for_line,
)


def test_the_open_step_and_the_wait_for_a_batch_are_seen_with_their_begin(ledgers: Path) -> None:
    script = """
    def batches():
        yield 1
        hold()
        yield 2
    stepscope.record_step("eval", 1.0, 2.0)
    hold()
    for batch in stepscope.watch(batches()):
        with stepscope.step("train"): hold()
        hold()
    """
    began = time.time()
    with training(script, ledgers) as process:

        def present() -> tuple[str, bool, bool]:
            """Returns the phase of the open step, whether it began just now, and whether a batch is due."""
            wait_for_line(process)
            with only_ledger(ledgers) as reader:
                totals = reader.totals()
            go_on(process)
            recent = totals.open_since is not None and began - 1 < totals.open_since < time.time() + 1
            return totals.open_phase, recent, totals.waiting_since is not None

        assert present() == ("", False, False)  # between steps
        assert present() == ("train", True, False)  # in the first step
        assert present() == ("", False, False)
        assert present() == ("", False, True)  # in the loader
        assert present() == ("train", True, False)


def test_gauges_are_published_by_name_and_keep_their_last_value(ledgers: Path) -> None:
    run = run_to_end(
        """
        stepscope.gauge("loss", 2)
        for step in range(3): stepscope.gauge("loss", 0.5 / (step + 1))
        stepscope.gauge("learning rate, warm-up", 1e-4)
        stepscope.gauge("grad_norm", float("nan"))
        """,
        ledgers,
    )
    gauges = run.totals.gauges
    assert list(gauges) == ["loss", "learning rate, warm-up", "grad_norm"]
    assert gauges["loss"] == 0.5 / 3
    assert math.isnan(gauges["grad_norm"])


def test_counts_grow_by_name_from_every_thread(ledgers: Path) -> None:
    run = run_to_end(
        """
        import threading
        def work():
            for _ in range(1000): stepscope.count("tokens", 2)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        stepscope.count("samples"); stepscope.count("samples")
        """,
        ledgers,
    )
    assert run.totals.counts == {"tokens": 8000, "samples": 2}


def test_counts_wait_for_the_ledger_that_another_thread_makes(ledgers: Path) -> None:
    run = run_to_end(
        """
        import threading, time
        from stepscope.training import session
        create = session.create_ledger
        def slowly(*arguments):
            time.sleep(0.3)
            return create(*arguments)
        session.create_ledger = slowly
        threads = [threading.Thread(target=stepscope.count, args=("tokens", 2)) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
        ledgers,
    )
    assert run.totals.counts == {"tokens": 8}


def test_threads_that_add_names_at_once_keep_all_of_them(ledgers: Path) -> None:
    run = run_to_end(
        """
        import threading, time
        from stepscope.training import ledger
        put = ledger._put_text
        def slowly(*arguments):
            time.sleep(0.2)
            put(*arguments)
        stepscope.count("first")
        ledger._put_text = slowly
        def work(number):
            stepscope.count("tokens", 2)
            stepscope.count(f"count {number}")
            stepscope.gauge(f"gauge {number}", number)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
        ledgers,
    )
    assert run.totals.counts == {"first": 1, "tokens": 6, "count 0": 1, "count 1": 1, "count 2": 1}
    assert run.totals.gauges == {"gauge 0": 0, "gauge 1": 1, "gauge 2": 2}


def test_a_count_that_cannot_be_costs_only_its_ledger(ledgers: Path) -> None:
    run_to_end("stepscope.count('tokens', 5)", ledgers)
    (path,) = open_ledgers(ledgers)
    for value, reason in ((3.0, "falling"), (math.nan, "counter"), (-1.0, "counter")):
        content = bytearray(path.read_bytes())
        with LedgerReader(path) as reader:
            assert reader.totals().counts == {"tokens": 5}
            layout.GAUGE.pack_into(content, layout.COUNTS_AT, value, b"tokens")
            path.write_bytes(content)
            with pytest.raises(LedgerError) as caught:
                reader.totals()
        assert caught.value.reason == reason
        layout.GAUGE.pack_into(content, layout.COUNTS_AT, 5.0, b"tokens")
        path.write_bytes(content)


REFUSED = [
    ("stepscope.start(rank=2**31)", "rank 2147483648 of"),
    ("stepscope.start(rank=-1)", "rank -1 of"),
    ("stepscope.start(rank=3, world_size=2)", "rank 3 of 2"),
    ("stepscope.start(local_rank=-2)", "local rank -2"),
    ("stepscope.start(run='two\\nlines')", "run name 'two"),
    ("stepscope.count('', 1)", "count name ''"),
    ("stepscope.count('tokens', -1)", "count 'tokens': -1.0 cannot be added"),
    ("stepscope.count('tokens', float('nan'))", "count 'tokens': nan cannot be added"),
    ("stepscope.count('tokens', 1e21)", "count 'tokens': 1e+21 cannot be added"),
    ("stepscope.gauge('', 1)", "gauge name ''"),
    ("stepscope.gauge('a\\nb', 1)", "gauge name 'a\\\\nb'"),
    ("stepscope.gauge('x' * 56, 1)", "gauge name"),
    ("stepscope.gauge('loss', 'low')", "could not convert"),
    (
        "stepscope.step('test')",
        "unknown phase 'test': use one of train, eval, predict, global",
    ),
    ("stepscope.begin_step('test')", "unknown phase 'test'"),
    ("stepscope.watch([], phase='test')", "unknown phase 'test'"),
    ("stepscope.record_step('test', 0.0, 1.0)", "unknown phase 'test'"),
    ("stepscope.record_step('train', 2.0, 1.0)", "a step cannot start at 2.0 and end at 1.0"),
    (
        "stepscope.record_step('train', 0, float('nan'))",
        "a step cannot start at 0 and end at nan",
    ),
    ("stepscope.record_step('train', 1.0, 2.0, data_wait=float('inf'))", "inf seconds"),
    ("stepscope.record_step('train', 1.0, 2.0, gc=1e9)", "1000000000.0 seconds"),
    ("stepscope.record_step('train', 1.0, 2e9)", "a step cannot start at 1.0"),
    ("stepscope.record_step('train', 1e300, 1e300)", "a step cannot start at 1e+300"),
    ("stepscope.watch([], workers=float('inf'))", "workers=inf: use 0 to"),
    ("stepscope.watch([], prefetch_factor=-1)", "prefetch_factor=-1: use 0 to"),
    ("stepscope.watch([], batch_size=2**40)", "batch_size=1099511627776: use 0 to"),
    ("[stepscope.count(f'c{i}') for i in range(17)]", "count 'c16' is one too many"),
    ("[stepscope.gauge(f'g{i}', i) for i in range(33)]", "gauge 'g32' is one too many"),
]


def test_what_a_reader_would_refuse_is_refused_at_the_call(ledgers: Path) -> None:
    script = f"""
    def refused():
        for call in {[call for call, _ in REFUSED]!r}:
            try: exec(call)
            except ValueError as error: say(error)
    refused()
    stepscope.record_step("train", 1.0, 2.0, forward=0.5)
    refused()
    stepscope.record_step("train", 2.0, 3.0, forward=0.5)
    """
    run = run_to_end(script, ledgers)
    for line, (call, error) in zip(run.output.splitlines(), REFUSED, strict=False):  # before the run began
        assert line.startswith(error.replace("\\\\", "\\")), call
    assert run.output.count("\n") >= len(REFUSED)
    assert run.totals.steps == {"train": 2}
    assert run.totals.component_seconds["forward"] == 1.0
    assert [step.components[1] for step in run.steps] == [0.5, 0.5]


def test_an_environment_that_cannot_be_never_stops_training(ledgers: Path) -> None:
    environment = {"RANK": str(2**31), "WORLD_SIZE": "4", "STEPSCOPE_RUN": "bell\a and\nlines"}
    run = run_to_end("stepscope.record_step('train', 1.0, 2.0)", ledgers, environment)
    (path,) = open_ledgers(ledgers)
    with only_ledger(ledgers) as reader:
        assert (reader.header.name, reader.header.rank) == ("bell_ and_lines", 0)
    assert path.name.startswith("bell__and_lines-")
    assert run.totals.steps == {"train": 1}


def test_a_launch_its_attempt_and_its_devices_are_in_the_header(ledgers: Path) -> None:
    run_to_end(
        """
        from stepscope.training.session import session
        stepscope.start()
        session.ledger.name_devices([f"GPU-{i}" for i in range(20)])
        """,
        ledgers,
        {"TORCHELASTIC_RESTART_COUNT": "2", "STEPSCOPE_LAUNCH": "boot-1/4711/12345"},
    )
    with only_ledger(ledgers) as reader:
        assert (reader.header.attempt, reader.header.launch_key) == (2, "boot-1/4711/12345")
        assert reader.header.devices == tuple(f"GPU-{i}" for i in range(16))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ""),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, "2,3"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-6f\n1b"}, "MIG-6f_1b"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "-1"),
        ({"HIP_VISIBLE_DEVICES": "1"}, "1"),
    ],
)
def test_the_devices_that_a_process_may_see_are_in_the_header(
    ledgers: Path, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    run_to_end("stepscope.start()", ledgers, environment)
    with only_ledger(ledgers) as reader:
        assert reader.header.visible_devices == expected
