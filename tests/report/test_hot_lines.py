"""Which lines the report names, and what it says about commands that record no step."""

import math
from dataclasses import replace
from typing import Any

import pytest
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis, RunCores, RunUse
from stepscope.report.document import document
from stepscope.report.hot_lines import parts, process_verdict
from stepscope.report.html import render_html
from stepscope.report.markdown import render_markdown
from stepscope.report.verdict import verdict
from stepscope.runs.model import LineTime, ThreadTime

from tests.support.analysis import nothing_found, rule

STATES = ("running", "disk", "lock", "child", "other")


def line(seconds: float, place: str = "data.py:14", state: str = "running", **names: str) -> LineTime:
    known = {
        "phase": "",
        "component": "",
        "function": "load",
        "library": "json.loads",
        "caller_place": "train.py:30",
        "caller": "main",
    }
    return LineTime(
        place=place, seconds={name: seconds if name == state else 0.0 for name in STATES}, **(known | names)
    )


def thread(*lines: LineTime, rank: int | None = None, role: str = "script", **totals: Any) -> ThreadTime:
    seconds = sum(each.total for each in lines)
    known = {"processes": 1, "seconds": seconds, "ran_seconds": seconds, "core_wait_seconds": 0.0}
    return ThreadTime("n1", rank, role, **(known | totals), own_cpu_seconds=0.01, lines=lines)


def used(cores: float, allowed: float = 8, waited: float = 0.0, read: float = 0.0) -> RunUse:
    return RunUse("n1", cores, allowed, waited, read, 0.0)


def without_steps(*threads: ThreadTime, use: RunUse | None = None) -> Analysis:
    unjudged = rule(status=Status.NOT_ENOUGH_DATA, finding="No GPU was seen.")
    return replace(
        nothing_found(),
        steps=[],
        rules=[unjudged],
        threads=list(threads),
        run_use=[use] if use else [],
        gpu_use=[],
    )


def test_a_script_that_calls_operations_of_jax_one_by_one_is_advised_to_compile_them() -> None:
    def said(library: str) -> str:
        return " ".join(process_verdict(without_steps(thread(line(62, library=library)), use=used(1.0))))

    assert "jax.jit" in said("jax._src.numpy.array_methods.op")
    assert "jax.jit" not in said("jax._src.api.block_until_ready")
    assert "jax.jit" not in said(compiles := "jax._src.pjit.cache_miss"), "it is compiled already"
    assert "jax.lax.scan" in said(compiles)


def test_a_plain_script_s_verdict_names_its_busy_thread_and_line() -> None:
    run = without_steps(thread(line(62), line(38, "data.py:20", library="")), use=used(1.0))
    said = verdict(run).sentences
    assert said[0] == ("One thread does all the work on 1 of 8 cores: 62 % in load, data.py:14 (json.loads).")
    assert said[1] == "No steps were seen, so only the machine was judged."
    assert said[3] == "Its time by lines: 62 % in load, data.py:14 (json.loads) and 38 % in load, data.py:20."
    assert (
        said[4]
        == "On average its processes use 1 of 8 cores, read 0 B/s from disks and write 0 B/s to disks."
    )


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("disk", "The main thread waits for a disk 90 % of the time: 90 % in load, data.py:14 (json.loads)."),
        ("lock", "The main thread waits for a lock 90 % of the time: 90 % in load, data.py:14 (json.loads)."),
        (
            "child",
            "The main thread waits for a child process 90 % of the time: "
            "90 % in load, data.py:14 (json.loads).",
        ),
        (
            "other",
            "The main thread waits for a timer, a socket or a pipe 90 % of the time"
            ": 90 % in load, data.py:14 (json.loads).",
        ),
    ],
)
def test_a_main_thread_that_waits_is_said_to_wait_and_for_what(state: str, words: str) -> None:
    waiting = thread(line(90, state=state), line(10, "data.py:3", library=""), ran_seconds=10.0)
    assert process_verdict(without_steps(waiting, use=used(0.1)))[0] == words


@pytest.mark.parametrize(
    ("cores", "who"),
    [
        ([], "something else uses"),  # as far as is known
        ([RunCores("node-a", 2.0, 0.9, 1.0)], "something else uses"),
        ([RunCores("node-a", 2.0, 1.1, 0.9)], "its own threads and processes use"),
    ],
)
def test_a_thread_without_a_core_is_not_called_busy(cores: list[RunCores], who: str) -> None:
    starved = thread(line(100), ran_seconds=15.0, core_wait_seconds=85.0)
    run = replace(without_steps(starved, use=used(0.15, allowed=2)), run_cores=cores)
    first, *more = process_verdict(run)
    assert first == (
        f"The main thread waits for a core 85 % of the time, because {who} the cores: "
        "100 % in load, data.py:14 (json.loads)."
    )
    assert any("OMP_NUM_THREADS=1" in each for each in more) == ("own" in who)


@pytest.mark.parametrize(("ran", "cores", "advises"), [(51.0, 1.4, 1), (50.0, 1.4, 0), (95.0, 1.5, 0)])
def test_threads_that_run_python_on_one_core_are_named_with_what_uses_several(
    ran: float, cores: float, advises: int
) -> None:
    count = line(ran, "count.py:2", function="count", library="")
    waiting = thread(line(100, state="lock"), ran_seconds=1.0, others=(count,))
    said = process_verdict(without_steps(waiting, use=used(cores)))
    assert [each for each in said if "threads" in each] == [
        "Its other threads run Python on one core: count, count.py:2. Threads take turns there, and "
        "processes use several cores (multiprocessing, ProcessPoolExecutor)."
    ] * advises


def test_several_busy_cores_are_no_single_thread() -> None:
    assert process_verdict(without_steps(thread(line(100)), use=used(5.2)))[0] == (
        "5.2 of 8 cores are busy. The main thread works on one of them: "
        "100 % in load, data.py:14 (json.loads)."
    )


@pytest.mark.parametrize(
    ("ran", "cores", "all_of_it"), [(95.0, 1.1, True), (95.0, 1.3, False), (60.0, 1.0, False)]
)
def test_a_thread_next_to_another_that_works_as_much_does_not_do_all_the_work(
    ran: float, cores: float, all_of_it: bool
) -> None:
    said = process_verdict(without_steps(thread(line(100), ran_seconds=ran), use=used(cores)))
    assert said[0].startswith("One thread does all the work") == all_of_it


def test_processes_that_only_wait_for_others_hide_neither_their_lines_nor_how_busy_they_are() -> None:
    waits = line(400, "train.py:9", state="other", library="joblib.parallel.get")
    both = thread(waits, line(190), line(10, "data.py:20"), processes=5, ran_seconds=195.0)
    run = without_steps(both, use=used(1.95, allowed=2))
    run = replace(run, start=0.0, end=100.0)
    said = process_verdict(run)
    assert said[0] == (
        "1.9 of 2 cores are busy. Its processes work on some of them: 95 % in load, data.py:14 (json.loads)."
    )
    assert "train.py" not in " ".join(said)
    alone = replace(both, ran_seconds=95.0, lines=(waits, line(100)), processes=2)
    said = process_verdict(replace(run, threads=[alone], run_use=[used(0.95, allowed=2)]))
    assert said[0] == "One thread does all the work on 1 of 2 cores: 100 % in load, data.py:14 (json.loads)."
    many = replace(both, core_wait_seconds=195.0)
    said = process_verdict(replace(run, threads=[many], run_cores=[RunCores("n1", 2.0, 1.95, 0.0)]))
    assert said[0].startswith("Its processes wait for a core 50 % of the time, because its own threads and ")
    idle = replace(both, lines=(waits,), ran_seconds=1.0)
    said = process_verdict(replace(run, threads=[idle], run_use=[used(0.01, allowed=2)]))
    assert said[0].startswith(
        "The main thread waits for a timer, a socket or a pipe 100 % of the time: 100 %"
    )


def test_what_works_while_the_main_thread_waits_is_said() -> None:
    waits = thread(line(100, state="lock", library="polars.lazyframe.frame.collect"), ran_seconds=40.0)
    assert process_verdict(without_steps(waits, use=used(3.4)))[0] == (
        "The main thread waits for a lock 100 % of the time, while the rest of the command uses 3.0 of 8 "
        "cores: 100 % in load, data.py:14 (polars.lazyframe.frame.collect)."
    )


@pytest.mark.parametrize(
    ("cores", "others", "waited", "status"),
    [
        (1.9, 0.0, 0.0, Status.HEALTHY),
        (1.4, 0.5, 0.0, Status.HEALTHY),
        (1.4, 0.0, 0.0, Status.NOT_ENOUGH_DATA),
        (1.0, 1.0, 0.0, Status.NOT_ENOUGH_DATA),
        (1.9, 0.0, 40.0, Status.NOT_ENOUGH_DATA),
    ],
)
def test_without_steps_only_a_command_whose_threads_keep_all_cores_busy_is_healthy(
    cores: float, others: float, waited: float, status: Status
) -> None:
    neighbours = rule("NoisyNeighbour", Status.HEALTHY)
    busy = thread(line(100), ran_seconds=100 - waited, core_wait_seconds=waited)
    run = replace(without_steps(busy, use=used(cores, allowed=2)), start=0.0, end=100.0, rules=[neighbours])
    run = replace(run, run_cores=[RunCores("n1", 2.0, cores, others)])
    found = verdict(run)
    assert found.status is status
    assert "data.py:14 (json.loads)" in found.sentence
    if status is Status.HEALTHY:
        assert found.sentence.startswith(f"Healthy: {cores} of 2 cores are busy. The main ")


@pytest.mark.parametrize(("cores", "others", "is_healthy"), [(1.9, 0.0, True), (1.2, 0.8, False)])
def test_a_main_thread_that_waits_is_healthy_only_if_its_command_itself_keeps_the_cores_busy(
    cores: float, others: float, is_healthy: bool
) -> None:
    run = without_steps(thread(line(100, state="lock"), ran_seconds=1.0), use=used(cores, allowed=2))
    found = verdict(replace(run, run_cores=[RunCores("n1", 2.0, cores, others)]))
    assert found.sentence.startswith("Healthy: all 2 cores are busy: 100 % in load") == is_healthy


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (used(7.9), "All 8 cores are busy: the command uses 7.9 of 8 cores."),
        (used(3.0), "The command uses 3.0 of 8 cores."),
        (used(1.0), "About one of 8 cores is busy: a single thread may limit the command."),
        (used(0.02), "The command hardly uses a core: it waits for something else."),
        (
            used(0.1, 2, 0.9),
            "The command waits for a core 90 % of the time in which it could run: "
            "something else uses the cores.",
        ),
    ],
)
def test_a_command_without_python_is_judged_by_its_processes(use: RunUse, words: str) -> None:
    assert process_verdict(without_steps(use=use))[0] == words


@pytest.mark.parametrize(
    ("threads", "cores", "words"),
    [
        ([], 3.0, "The command uses 3.0 cores."),
        ([], 1.0, "About one core is busy: a single thread may limit the command."),
        ([thread(line(100))], 1.0, "One thread does all the work on 1 core: "),
        ([thread(line(100, state="lock"), ran_seconds=0.0)], 3.0, "The main thread waits for a lock 100 % "),
    ],
)
def test_nothing_is_said_about_cores_that_are_not_known(
    threads: list[ThreadTime], cores: float, words: str
) -> None:
    said = process_verdict(replace(without_steps(*threads, use=used(cores, math.nan)), cores={}))
    assert said[0].startswith(words)
    assert "nan" not in " ".join(said)


def test_disk_traffic_of_the_processes_is_said() -> None:
    assert "read 12.0 MB/s from disks" in process_verdict(without_steps(use=used(1.0, read=12e6)))[1]


def test_nothing_is_said_about_processes_that_were_not_measured() -> None:
    assert process_verdict(without_steps()) == []
    assert verdict(without_steps()).sentence == (
        "Not enough data: no steps were seen, so only the machine was judged."
    )
    assert process_verdict(without_steps(use=used(math.nan))) == []


def ranks(slow: int | None) -> Analysis:
    def of(rank: int, seconds: float) -> ThreadTime:
        lines = (
            line(seconds, phase="train", component="data_wait"),
            line(10, "data.py:20", phase="train", component="data_wait"),
            line(50, "train.py:40", phase="train", component="forward", library=""),
        )
        return thread(*lines, rank=rank, role="training")

    accused = (
        rule("Straggler", Status.FOUND, details={"rank": slow}) if slow is not None else rule("Straggler")
    )
    threads = [of(rank, 30 if rank == slow else 10) for rank in range(4)]
    return replace(nothing_found(), threads=threads, rules=[accused])


def test_the_slow_rank_is_compared_with_the_rank_in_the_middle() -> None:
    found = parts(ranks(slow=3))
    data = next(part for part in found if part.component == "data_wait")
    assert data.words == (
        "data, rank 3: 75 % in load, data.py:14 (json.loads) and 25 % in load, data.py:20 (json.loads)"
    )
    assert (data.typical_rank, data.lines[0].typical_share) == (0, 0.5)


def test_without_a_slow_rank_the_rank_in_the_middle_is_shown_alone() -> None:
    assert {(part.thread.rank, part.typical_rank) for part in parts(ranks(slow=None))} == {(0, None)}


@pytest.mark.parametrize(
    ("phase", "component", "name"),
    [
        ("", "", "outside training, rank 2"),
        ("initialization", "", "before the first step, rank 2"),
        ("train", "", "training loop, rank 2"),
        ("train", "host", "your own code, rank 2"),
        ("eval", "", "evaluation loop, rank 2"),
        ("eval", "data_wait", "data (eval), rank 2"),
        ("finalization", "", "after the last step, rank 2"),
    ],
)
def test_time_outside_components_is_never_called_training(phase: str, component: str, name: str) -> None:
    seen = thread(line(10, phase=phase, component=component), rank=2, role="training")
    assert [part.name for part in parts(replace(nothing_found(), threads=[seen]))] == [name]


def test_every_format_shows_the_lines() -> None:
    run = ranks(slow=3)
    assert "load, data.py:14 (json.loads)" in render_html(run)
    assert "Data, rank 3: 75 %" in render_markdown(run)
    top = document(run)["top_lines"][0]
    assert {"rank", "component", "lines", "words"} <= top.keys()
    assert len(document(run)["lines"]) == 4


def test_names_of_a_hostile_script_are_text_on_the_page() -> None:
    hostile = thread(line(10, "<script>alert(1)</script>.py:1", library="", caller="<b>"))
    page = render_html(replace(nothing_found(), threads=[hostile]))
    assert "<script>alert(1)" not in page
