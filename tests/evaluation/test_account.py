"""The account of a run: its parts are disjoint and sum to the wall time of all ranks."""

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.commands.demo import Written, simulated_directory
from stepscope.common.status import Status
from stepscope.demo.node import INTERVAL, SimulatedClock, make_exporter
from stepscope.demo.scenarios import all_scenarios
from stepscope.demo.simulation import Simulation
from stepscope.evaluation.account import BEFORE, Account, Key, Leaf, account, lines_of, name_of
from stepscope.evaluation.analysis import Analysis, GpuUse
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.places import places
from stepscope.evaluation.problems import problems, problems_of, small_problems
from stepscope.evaluation.settings import Settings
from stepscope.evaluation.unexplained import (
    is_accounted,
    is_busy,
    large_in_loop,
    perhaps_idle,
    unexplained,
    unseen,
)
from stepscope.measurements.timeline import StepTimeline
from stepscope.report.verdict import status_of_run, verdict
from stepscope.runs.model import COMPONENTS, PHASES, LineTime, RankFacts, StackTime, ThreadTime
from stepscope.runs.open import open_source
from stepscope.runs.recording.live import LiveRecording
from stepscope.training.layout import GRAPHS_FETCH

from tests.support.analysis import nothing_found, rule
from tests.support.analysis import steps as steps_of_rank
from tests.support.scenarios import WrittenScenarios
from tests.support.smallest import smallest
from tests.support.source import START, MemorySource, rank_facts, run_facts

seconds = st.floats(0, 1000)


def rank_of(rank: int, first: float | None, last: float | None, **more: Any) -> RankFacts:
    known = {"start": START, "first_step_start": first, "last_step_end": last}
    return rank_facts(rank, **{**known, **more})


@st.composite
def attempts(draw: st.DrawFn) -> tuple[float, list[RankFacts]]:
    """Draws when a run ended, and processes of up to three ranks, of which some are started again."""
    end, ranks = START + 10 * draw(seconds) + 1, []
    for rank in range(draw(st.integers(1, 3))):
        at = START
        for _ in range(draw(st.integers(1, 3))):
            begin, first = at, at + draw(seconds)
            phases = {phase: draw(seconds) for phase in draw(st.sets(st.sampled_from(PHASES)))}
            other = draw(seconds)
            last = first + sum(phases.values()) + other
            parts = {name: draw(st.floats(0, 1)) for name in COMPONENTS}
            scale = sum(phases.values()) / max(sum(parts.values()), 1) * draw(st.floats(0, 1))
            at = last + draw(seconds)
            has_steps = bool(phases)
            ranks.append(
                rank_of(
                    rank,
                    first if has_steps else None,
                    last if has_steps else None,
                    start=begin,
                    end=draw(st.sampled_from((at, None))),
                    killed=draw(st.booleans()),
                    phase_seconds={**phases, "other": other} if has_steps else {},
                    component_seconds={name: scale * part for name, part in parts.items()},
                )
            )
        end = max(end, at)
    return end, ranks


@given(attempts())
def test_the_parts_sum_to_the_wall_time_of_all_ranks(drawn: tuple[float, list[RankFacts]]) -> None:
    end, ranks = drawn
    found = account(START, end, ranks, {}, [])
    assert found is not None
    whole = (end - START) * len({rank.rank for rank in ranks})
    assert found.seconds == pytest.approx(whole, rel=0.01)
    assert sum(leaf.seconds for leaf in found.leaves) == pytest.approx(whole, rel=0.01)
    assert sum(leaf.share for leaf in found.leaves) == pytest.approx(1)
    assert all(0 < leaf.rank_seconds <= leaf.seconds * 1.000001 for leaf in found.leaves)
    assert len({leaf.key for leaf in found.leaves}) == len(found.leaves)


@pytest.mark.parametrize("name", sorted(all_scenarios()))
def test_the_account_of_a_scenario_knows_where_its_time_went(scenarios: WrittenScenarios, name: str) -> None:
    found = scenarios.written(name).recording
    assert found.account is not None
    assert found.start is not None
    assert found.last_seen is not None
    wall = (found.last_seen - found.start) * found.ranks
    assert sum(leaf.seconds for leaf in found.account.leaves) == pytest.approx(wall, rel=0.01)
    assert found.account.share("unknown") < 0.05


@pytest.mark.parametrize("name", smallest(["straggler", "step-outliers", "fluctuating"], {0}))
def test_the_account_agrees_with_what_the_exporter_counted_meanwhile(tmp_path: Path, name: str) -> None:
    seconds, recording = 120.0, tmp_path / "recording"
    with simulated_directory() as directory:
        clock, scenario = SimulatedClock(START, 1.0), all_scenarios()[name]()
        simulation = Simulation(scenario, 0, "run", START, seconds, directory)
        written = Written(scenario, 0, "run", START, recording)
        exporter = make_exporter(simulation, clock, directory, LiveRecording(recording))
        for _ in range(round(seconds / INTERVAL) + 2):
            exporter.tick()
            clock.advance(INTERVAL)
        exporter.close()
        written.end(START + seconds, well=True)
    (family,) = (each for each in exporter.families() if each.name == "stepscope_account_seconds_total")
    counted: dict[str, float] = defaultdict(float)
    for (_, _, part), value in family.samples.items():
        counted[part] += value
    found = evaluate(open_source(recording)).account
    assert found is not None
    accounted = {leaf.key.label: leaf.seconds for leaf in found.leaves}
    after = accounted.pop("after_last_step", 0.0)  # which nobody knew while it passed
    accounted["between_steps"] = accounted.get("between_steps", 0.0) + after
    within = 0.01 * found.seconds
    assert found.seconds == pytest.approx(sum(counted.values()), rel=0.01)
    assert {part: counted[part] for part in accounted} == pytest.approx(accounted, abs=within)
    assert sum(value for part, value in counted.items() if part not in accounted) < within


def test_components_of_evaluation_are_those_of_its_recorded_steps_and_training_has_the_rest() -> None:
    names = {name: float(number) for number, name in enumerate(COMPONENTS)}
    facts = rank_of(
        0,
        START + 10,
        START + 110,
        end=START + 120,
        phase_seconds={"train": 70.0, "eval": 20.0, "other": 10.0},
        component_seconds=names,
    )
    in_evaluation = np.array([0.25 * seconds for seconds in names.values()])
    found = account(START, START + 120, [facts], {(0, "eval"): in_evaluation}, [])
    assert found is not None
    by_key = {tuple(leaf.key): leaf.seconds for leaf in found.leaves}
    assert by_key["train", "backward"] == pytest.approx(0.75 * names["backward"])
    assert by_key["eval", "backward"] == pytest.approx(0.25 * names["backward"])
    assert by_key["train", "host"] == pytest.approx(70 - 0.75 * sum(names.values()))
    assert (
        by_key["before_first_step", ""] == by_key["after_last_step", ""] == by_key["between_steps", ""] == 10
    )
    assert found.main_phase == "train"


@pytest.mark.parametrize("restarted", [False, True])
def test_the_time_before_the_first_step_is_split_as_its_lines_were_sampled(restarted: bool) -> None:
    lines = (
        line("train.py:1", 4.0, library="import"),
        line("train.py:5", 3.0, phase="initialization"),
        line("train.py:6", 0.0, 2.0, phase="initialization", component="communication"),
        line("train.py:7", 1.0, phase="initialization", component="compile"),
        line("train.py:9", 60.0, phase="train", component="forward"),
        line("", 30.0, function=""),  # all others, of which nobody knows when they ran
    )
    thread = ThreadTime("n1", 0, "training", 1, 80.0, 70.0, 0.0, 0.1, lines)
    ranks = [rank_of(0, START + 20, START + 100, end=START + 100, phase_seconds={"train": 80.0})]
    if restarted:  # then half of the samples are of the other start
        first = replace(ranks[0], first_step_start=START + 5, last_step_end=START + 10, end=START + 15)
        ranks = [first, replace(ranks[0], attempt=2)]
    found = account(START, START + 100, ranks, {}, [thread])
    assert found is not None
    scale = 0.5 if restarted else 1.0
    before = 5.0 if restarted else 20.0
    parts = [leaf for leaf in found.leaves if leaf.key.part == "before_first_step"]
    assert {leaf.key.component: leaf.seconds for leaf in parts} == {
        "imports": pytest.approx(4 * scale),
        "set_up": pytest.approx(before - 7 * scale),
        "communication": pytest.approx(2 * scale),
        "compile": pytest.approx(scale),
    }
    whole = found.whole("before_first_step")
    assert whole.seconds == pytest.approx(before)
    assert [place.line.place for place in whole.places] == [f"train.py:{number}" for number in (1, 5, 6, 7)]
    assert sum(leaf.seconds for leaf in found.leaves) == pytest.approx(100.0)
    assert name_of(parts[0].key) == "Before the first step: waiting for the other ranks"


def test_a_rank_that_was_killed_spent_its_end_in_an_unfinished_step() -> None:
    facts = rank_of(
        0, START, START + 50, end=START + 90, killed=True, phase_seconds={"train": 50.0, "other": 0.0}
    )
    found = account(START, START + 100, [facts], {}, [])
    assert found is not None
    assert found.share("unfinished_step") == pytest.approx(0.4)
    assert found.share("after_last_step") == pytest.approx(0.1)


def line(place: str, running: float, waiting: float = 0.0, function: str = "main", **more: str) -> LineTime:
    names = {"phase": "", "component": "", "library": "", "caller_place": "", "caller": "", **more}
    states = {"running": running, "disk": 0.0, "lock": 0.0, "child": 0.0, "other": waiting}
    return LineTime(place=place, function=function, seconds=states, **names)


def test_without_steps_the_time_is_what_the_main_thread_did_and_the_rest_is_unknown() -> None:
    lines = (line("np_loop.py:14", 60.0, function="preprocess"), line("np_loop.py:20", 0.0, 20.0))
    thread = ThreadTime("n1", None, "script", 1, 80.0, 50.0, 10.0, 0.1, lines)
    found = account(START, START + 100, [], {}, [thread])
    assert found is not None
    shares = {tuple(leaf.key): leaf.share for leaf in found.leaves}
    assert shares == {
        ("without_steps", "running"): pytest.approx(0.5),
        ("without_steps", "core"): pytest.approx(0.1),
        ("without_steps", "other"): pytest.approx(0.2),
        ("unknown", ""): pytest.approx(0.2),
    }
    (running,) = (leaf for leaf in found.leaves if leaf.key.component == "running")
    assert [(place.words, place.share) for place in running.places] == [("preprocess, np_loop.py:14", 1.0)]


def test_the_places_of_a_leaf_are_lines_of_the_users_code_by_their_time() -> None:
    lines = [
        line("metric.py:13", 2.0, function="<listcomp>"),
        line("metric.py:13", 1.0, function="confusion", library="torch.Tensor.__iter__"),
        line("metric.py:14", 1.0, function="confusion"),
    ]
    leaf = Leaf(Key("train", "host"), 0.8, {0: 8.0}, tuple(lines))
    assert [(place.words, place.share) for place in leaf.places] == [
        ("confusion, metric.py:13", 0.75),
        ("confusion, metric.py:14", 0.25),
    ]
    assert name_of(leaf.key) == "Your own code"
    assert name_of(Key("eval", "host")) == "Evaluation steps: your own code"


@pytest.mark.parametrize(
    ("state", "library"),
    [
        ("child", "subprocess.wait"),
        ("other", "torch.multiprocessing.spawn.join"),
        ("lock", "ray._private.worker.get"),
        ("other", ""),
    ],
)
def test_a_script_that_waits_for_the_ranks_it_started_does_nothing_before_their_first_step(
    state: str, library: str
) -> None:
    waits = LineTime("", "", "start.py:7", "", library, "", "", {state: 90.0})
    loads = LineTime("", "", "start.py:3", "", "", "", "", {"running": 5.0})
    builds = LineTime("initialization", "", "train.py:3", "", "", "", "", {"running": 20.0})
    script = ThreadTime("n1", None, "script", 1, 95.0, 5.0, 0.0, 0.1, (waits, loads))
    rank = ThreadTime("n1", 0, "training", 1, 20.0, 20.0, 0.0, 0.1, (builds,))
    assert list(lines_of(Key(BEFORE), [script, rank])) == [loads, builds]
    assert list(lines_of(Key(BEFORE), [script])) == [waits, loads]


# -- findings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fetched", "late"), [(1.1, "collate.py:23"), (0.9, "train.py:42")])
def test_workers_that_were_hardly_seen_at_work_are_not_what_the_main_thread_waits_for(
    fetched: float, late: str
) -> None:
    """They hand over hundreds of small tensors, which the main thread receives for ten seconds."""
    received = LineTime("train", "data_wait", "train.py:42", "", "", "", "", {"running": 4.9, "other": 5.1})
    main = ThreadTime("a", 0, "training", 1, 20.0, 5.0, 0.0, 0.0, (received,))
    idle = LineTime("", "", "", "", "selectors.select", "", "", {"other": 20.0})
    work = line("collate.py:23", fetched)
    worker = ThreadTime("a", 0, "loader worker", 1, 20.0, fetched, 0.0, 0.0, (idle, work))
    assert [each.place for each in lines_of(Key("train", "data_wait"), [main, worker])] == [late]


def run_with(**shares: float) -> Analysis:
    """An analysis of 1,000 s without a judged rule. `train_host=0.2`: that share of the run."""
    leaves = [Leaf(Key(*name.split("__")), part, {0: 1000 * part}) for name, part in shares.items()]
    account = Account(1000.0, 1, tuple(leaves))
    return replace(
        nothing_found(), rules=[], steps=[], start=START, end=START + 1000, gpu_use=[], account=account
    )


def test_a_measured_cause_is_large_from_a_tenth_of_the_loop_on_or_of_three_seconds() -> None:
    half, moment = (run_with(train__forward=loop, after_last_step=1 - loop) for loop in (0.5, 0.001))
    limits = [large_in_loop(run.account, run) for run in (half, moment) if run.account is not None]
    assert limits == pytest.approx([0.05, 0.0003])


@pytest.mark.parametrize(
    ("shares", "titles"),
    [
        ({"train__host": 0.0999, "train__forward": 0.9}, []),
        ({"train__host": 0.11, "train__forward": 0.89}, ["Your own code"]),
        ({"train__host": 0.09, "train__forward": 0.41, "after_last_step": 0.5}, []),  # no cause was measured
        ({"train__host": 1.0}, []),  # nothing was timed in steps
        ({"train__host": 0.3, "train__data_wait": 0.4}, ["Waiting for data", "Your own code"]),
        ({"train__compile": 0.8, "train__forward": 0.2}, ["Compiling"]),
        ({"train__forward": 0.66, "eval__forward": 0.34}, ["Evaluation steps"]),
        ({"train__forward": 0.68, "eval__forward": 0.32}, []),
        ({"eval__forward": 0.6, "predict__forward": 0.4}, []),  # nothing was trained
        ({"train__forward": 0.1, "eval__forward": 0.1, "after_last_step": 0.8}, ["Evaluation steps"]),
        ({"train__forward": 0.1, "eval__forward": 0.09, "after_last_step": 0.8}, []),
        ({"eval__forward": 0.9, "eval__host": 0.1}, ["Evaluation steps: your own code"]),
        ({"train__forward": 0.8, "between_steps": 0.2}, ["Between steps"]),
        ({"train__forward": 0.71, "before_first_step": 0.29}, []),  # less than five minutes
        ({"before_first_step": 1.0}, []),  # it may still be in its start
        ({"train__backward": 0.6, "train__optimizer": 0.4}, []),
        ({"train__backward": 0.4, "train__forward": 0.03, "train__host": 0.49}, []),  # forward passes
        ({"train__backward": 0.4, "train__forward": 0.03, "train__host": 0.51}, ["Your own code"]),
        ({"train__backward": 0.4, "train__forward": 0.05, "train__host": 0.49}, ["Your own code"]),
    ],
)
def test_a_large_part_that_no_rule_judges_is_a_finding(shares: dict[str, float], titles: list[str]) -> None:
    assert [found.about.subject for found in unexplained(run_with(**shares))] == titles


@pytest.mark.parametrize(
    ("steps", "share", "word"),
    [
        (0, 0.8, "Let shapes repeat"),  # in how many steps is not known
        (5, 0.8, "Let shapes repeat"),
        (4, 0.8, "Keep what was compiled"),
        (4, 0.5, ""),  # as long as the loop that follows
    ],
)
def test_compiling_each_graph_once_is_a_part_of_the_start(steps: int, share: float, word: str) -> None:
    run = replace(run_with(train__compile=share, train__forward=1 - share), compiled_steps=steps)
    assert [word for found in unexplained(run) if word in found.recommendation] == [word] * bool(word)
    assert len(unexplained(run)) == bool(word)


def test_compiling_the_graph_of_an_evaluation_is_not_counted_in_the_evaluation_again() -> None:
    run = run_with(train__forward=0.1, eval__compile=0.8, eval__forward=0.1)
    found = unexplained(replace(run, compiled_steps=1))
    assert [one.about.subject for one in found] == ["Evaluation steps: compiling"]
    assert sum(one.seconds_lost for one in found) <= 1000


COMPILES, EVALUATES = (
    {"train__compile": 0.8, "train__forward": 0.2},
    {"train__forward": 0.4, "eval__forward": 0.6},
)


@pytest.mark.parametrize(
    ("shares", "framework", "word"),
    [
        (COMPILES, "pytorch 2.9.1", "TORCH_LOGS"),
        (COMPILES, "", "TORCH_LOGS"),
        (COMPILES, "tensorflow 2.21.0", "tf.function"),
        (COMPILES, "jax 0.10.2", "JAX_EXPLAIN"),
        (COMPILES, "keras 3.15.0 on jax", "drop_remainder"),
        (COMPILES, "keras 3.15.0 on torch", "TORCH_LOGS"),
        (EVALUATES, "keras 3.15.0 on torch", "validation_freq"),
        (EVALUATES, "pytorch 2.13.0", "without gradients"),
    ],
)
def test_advice_speaks_of_the_framework_that_trains_and_of_its_loop(
    shares: dict[str, float], framework: str, word: str
) -> None:
    (found,) = unexplained(replace(run_with(**shares), framework=framework))
    assert word in found.recommendation


@pytest.mark.parametrize(
    ("library", "states", "word"),
    [
        ("urllib.request.urlopen", {"running": 30.0, "other": 270.0}, "a network"),
        ("urllib.request.urlopen", {"running": 149.0, "other": 151.0}, "a network"),
        ("urllib.request.urlopen", {"running": 150.0, "other": 150.0}, "vectorise"),
        ("subprocess._communicate", {"running": 10.0, "other": 290.0}, "a process"),
        ("os.waitpid", {"child": 300.0}, "a process"),
        ("", {"running": 10.0, "disk": 290.0}, "fsync"),
        ("", {"lock": 300.0}, "a lock"),
        ("polars.lazyframe.frame.collect", {"lock": 300.0}, "threads of a library, which compute"),
        ("torch._tensor.item", {"running": 10.0, "other": 290.0}, "vectorise"),  # it waits for a device
        ("multiprocessing.context.Pool", {"lock": 300.0}, "Make the pool once"),
        ("multiprocessing.pool.map", {"lock": 300.0}, "what other processes or threads compute"),
        ("queue.get", {"lock": 300.0}, "what other processes or threads compute"),
        ("prefetch_generator.next", {"lock": 300.0}, "or let several make it ahead of the step"),
        ("multiprocessing.queues.get", {"running": 200.0, "other": 100.0}, "shared memory"),
        ("multiprocessing.managers._callmethod", {"other": 300.0}, "shared memory"),
        ("multiprocessing.connection.recv", {"running": 300.0}, "shared memory"),
        ("concurrent.futures._base.result", {"lock": 300.0}, "what other processes or threads compute"),
        ("torch.distributed.distributed_c10d.all_gather_object", {"running": 300.0}, "Gather tensors"),
        ("torch.distributed.distributed_c10d.broadcast_object_list", {"lock": 300.0}, "Gather tensors"),
        ("torch.distributed.rpc.api.rpc_sync", {"lock": 300.0}, "another thread or process"),
    ],
)
def test_advice_on_a_line_that_waits_is_to_wait_less(
    library: str, states: dict[str, float], word: str
) -> None:
    slow = LineTime("train", "host", "train.py:3", "report", library, "", "", states)
    (found,) = unexplained(with_lines("train__host", 300, slow))
    assert word in found.recommendation


@pytest.mark.parametrize(
    ("library", "advice"),
    [
        ("torch.multiprocessing.reductions.rebuild_storage_fd", "Hand over fewer and larger arrays"),
        ("torch.utils.data.dataloader._next_data", "Make the next batch ready"),
    ],
)
def test_advice_on_waits_for_data_is_about_the_hand_over_if_the_line_receives_tensors(
    library: str, advice: str
) -> None:
    waits = line("train.py:3", 1.0, component="data_wait", library=library)
    (found,) = unexplained(with_lines("train__data_wait", 400, waits))
    assert found.recommendation.startswith(advice)


@pytest.mark.parametrize(
    ("library", "states", "word"),
    [
        ("", {"lock": 300.0}, "for what JAX still computes"),
        ("jax._src.lax.lax.dot_general", {"running": 300.0}, "jax.jit"),
        ("optax.transforms._combining.update_fn", {"running": 300.0}, "jax.jit"),
        ("flax.serialization.to_bytes", {"running": 300.0}, "Orbax"),
        ("jax._src.numpy.array_constructors.asarray", {"running": 300.0}, "vectorise"),
        ("jax._src.numpy.array_constructors.asarray", {"running": 270.0, "lock": 30.0}, "vectorise"),
        ("jax._src.numpy.array_constructors.asarray", {"running": 269.0, "lock": 31.0}, None),
    ],
)
def test_advice_on_a_line_next_to_jax_knows_what_waits_for_its_arrays(
    library: str, states: dict[str, float], word: str | None
) -> None:
    reads = LineTime("train", "host", "train.py:3", "step", library, "", "", states)
    found = unexplained(replace(with_lines("train__host", 300, reads), framework="jax 0.10.2"))
    assert [word in each.recommendation for each in found if word] == [True] * len(found)
    assert len(found) == (word is not None)


@pytest.mark.parametrize(
    ("called_at", "advice"),
    [("train.py:3", "This line calls a compiled function"), ("train.py:9", "Compile the step")],
)
def test_a_line_that_calls_a_compiled_step_is_not_to_compile_it(called_at: str, advice: str) -> None:
    run = with_lines("train__host", 300, line("train.py:3", 1.0, library="flax.nnx.graph.flatten"))
    assert run.account is not None
    own, forward = run.account.leaves
    compiled = replace(forward, lines=(line(called_at, 1.0, library="jax._src.pjit.cache_miss"),))
    account = replace(run.account, leaves=(own, compiled))
    (found,) = unexplained(replace(run, account=account, framework="jax 0.10.2"))
    assert found.recommendation.startswith(advice)


@pytest.mark.parametrize(
    ("library", "word"),
    [
        ("predict: keras.src.trainers.data_adapters.array_data_adapter.get_tf_dataset", "call it once"),
        ("fit: tf_keras.src.engine.data_adapter.__init__", "call it once"),
        ("keras.src.models.model.save", "what runs between steps"),
    ],
)
def test_time_between_steps_names_its_lines_and_calls_of_keras_s_loops(library: str, word: str) -> None:
    after = line("train.py:9", 20.0, phase="train", library=library)
    inside = line("train.py:5", 1.0, phase="train", component="host")
    thread = ThreadTime("node-a", 0, "training", 1, 21.0, 21.0, 0.0, 0.0, (after, inside))
    assert list(lines_of(Key("between_steps"), [thread])) == [after]
    assert list(lines_of(Key("train", "host"), [thread])) == [inside]
    silent = replace(thread, lines=(after,))  # of a process that does not say when it is in no step
    assert list(lines_of(Key("train", "host"), [silent])) == [after]
    (found,) = unexplained(replace(with_lines("between_steps", 500, after), threads=[thread]))
    assert word in found.recommendation


def test_a_long_name_of_a_library_is_shown_by_its_end_with_the_loop_that_runs_it() -> None:
    def shown(library: str) -> str:
        (place,) = places([LineTime("train", "host", "train.py:3", "", library, "", "", {"running": 1.0})])
        return place.words

    assert (
        shown("torch.distributed.distributed_c10d.broadcast")
        == "train.py:3 (distributed.distributed_c10d.broadcast)"
    )
    assert (
        shown("fit: lightning.fabric.loggers.csv_logs.save")
        == "train.py:3 (fit: fabric.loggers.csv_logs.save)"
    )
    assert shown("json.loads") == "train.py:3 (json.loads)"


def test_advice_on_an_evaluation_speaks_of_its_own_code_if_that_is_most_of_it() -> None:
    (found,) = unexplained(run_with(train__forward=0.4, eval__host=0.4, eval__forward=0.2))
    assert "67 % of this part is your own code" in found.finding
    assert "vectorise" in found.recommendation
    (half,) = unexplained(run_with(train__forward=0.5, eval__host=0.25, eval__forward=0.25))
    assert "your own code" not in half.finding
    assert "vectorise" not in half.recommendation


@pytest.mark.parametrize(
    ("starts", "begin"), [(400.0, "The loader starts and ends its workers"), (200.0, "Evaluate less often")]
)
def test_an_evaluation_that_mostly_starts_and_ends_workers_is_to_keep_them(starts: float, begin: str) -> None:
    names = {"_shutdown_workers": starts / 2, "__iter__": starts / 2, "_try_get_data": 500.0 - starts}
    lines = tuple(
        LineTime("eval", "data_wait", "train.py:9", "", f"torch.utils.data.dataloader.{name}", "", "", waits)
        for name, waits in ((name, {"other": seconds}) for name, seconds in names.items())
    )
    run = run_with(train__forward=0.4, eval__data_wait=0.5, eval__forward=0.1)
    run = replace(run, threads=[ThreadTime("n1", 0, "training", 1, 1000.0, 900.0, 0.0, 0.1, lines)])
    (found,) = unexplained(run)
    assert found.recommendation.startswith(begin)


def test_predictions_in_the_steps_of_an_own_loop_cost_what_keras_does_around_them_too() -> None:
    run = with_lines("train__host", 400, line("agent.py:15", 1.0, library="predict: keras.src.x.get_data"))
    (found,) = unexplained(run)
    assert (found.about.subject, found.seconds_lost) == ("Prediction steps", 400.0)
    assert "call it once" in found.recommendation


@pytest.mark.parametrize(
    ("evaluates", "waits", "lost"),
    [
        ([300, 0], [0, 290], 290),
        ([300, 0, 0, 0], [10, 300, 310, 320], 300),
        ([300, 280], [0, 20], None),  # all do
        ([300, 0], [290, 300], None),  # nobody waits for it
        ([90, 0], [0, 90], None),  # too little
    ],
)
def test_a_rank_that_evaluates_alone_while_the_others_wait_is_named_once(
    evaluates: list[float], waits: list[float], lost: float | None
) -> None:
    ranks = len(waits)
    parts = {Key("eval", "forward"): evaluates, Key("train", "communication"): waits}
    parts[Key("train", "forward")] = [1000 - sum(pair) for pair in zip(evaluates, waits, strict=True)]
    leaves = tuple(
        Leaf(key, sum(seconds) / (1000 * ranks), dict(enumerate(seconds))) for key, seconds in parts.items()
    )
    run = replace(run_with(), account=Account(1000.0 * ranks, ranks, leaves))
    judged = [rule(name, Status.HEALTHY) for name in ("CommunicationBound",)]
    long = rule(
        "StepOutlier",
        Status.FOUND,
        seconds_lost=200.0,
        details={"component": "communication", "step_details": {}},
    )
    found = [
        problem
        for problem in problems_of(replace(run, rules=[*judged, long]))
        if problem.rule.rule == "Account"
    ]
    alone = [problem for problem in found if "rank" in problem.rule.details]
    assert [problem.seconds_lost for problem in alone] == ([] if lost is None else [pytest.approx(lost)])
    for problem in alone:
        assert problem.rule.details["rank"] == 0
        assert [result.rule for result in problem.also] == ["StepOutlier"]
    assert len({problem.title for problem in found}) == len(found)


def test_the_framework_is_that_of_any_rank_that_says_it() -> None:
    ranks = [rank_facts(0), rank_facts(1, framework="jax", framework_version="0.4.30")]
    assert evaluate(MemorySource(facts=run_facts(ranks=ranks))).framework == "jax 0.4.30"


def test_a_part_that_a_rule_judged_is_no_second_finding() -> None:
    run = run_with(train__data_wait=0.5, train__forward=0.5)
    judged = replace(run, rules=[rule("DataStarved", Status.HEALTHY)])
    unjudged = replace(run, rules=[rule("DataStarved", Status.NOT_ENOUGH_DATA)])
    assert unexplained(judged) == []
    assert [found.about.subject for found in unexplained(unjudged)] == ["Waiting for data"]


def test_what_costs_less_than_3_percent_of_the_run_is_small_and_a_risk_never_is() -> None:
    run = run_with(train__forward=1.0)
    cheap, dear = (rule("StepOutlier", Status.FOUND, seconds_lost=lost) for lost in (29.0, 31.0))
    risk = rule("GPUError", Status.FOUND)
    assert [one.rule for one in problems_of(replace(run, rules=[cheap, risk]))] == [risk]
    assert [one.rule for one in small_problems(replace(run, rules=[cheap, risk]))] == [cheap]
    assert [one.rule for one in problems_of(replace(run, rules=[dear]))] == [dear]


def test_a_loss_whose_cause_is_not_known_is_small_below_10_percent_of_the_run() -> None:
    run = run_with(train__forward=0.9)
    unknown = rule("StepOutlier", Status.FOUND, seconds_lost=90.0, cause_known=False)
    known = replace(unknown, cause_known=True)
    assert small_problems(replace(run, rules=[unknown]))
    assert not small_problems(replace(run, rules=[known]))
    assert not small_problems(replace(run, rules=[replace(unknown, seconds_lost=110.0)]))


def with_lines(key: str, seconds: float, *lines: LineTime) -> Analysis:
    """A run of 1,000 s that spent so many of them in a part with these lines, by their shares of it."""
    scale = seconds / sum(each.total for each in lines)
    lines = tuple(
        replace(each, seconds={state: scale * spent for state, spent in each.seconds.items()})
        for each in lines
    )
    run = run_with(train__forward=1 - seconds / 1000)
    assert run.account is not None
    leaf = Leaf(Key(*key.split("__")), seconds / 1000, {0: seconds}, lines)
    return replace(run, account=replace(run.account, leaves=(leaf, *run.account.leaves)))


@pytest.mark.parametrize(
    ("ran", "core_wait", "known", "lost"),
    [
        (300, 100, 1000, [600.0]),
        (800, 100, 1000, [100.0]),
        (801, 100, 1000, []),
        (300, 605, 1000, []),  # or for a core,
        (300, 100, 800, []),  # or for something that the kernel does not show
        (0, 0, 1000, []),  # it does not tell how long the thread ran, either
    ],
)
def test_who_holds_the_interpreter_lock_is_named_if_the_main_thread_waits_for_it(
    ran: float, core_wait: float, known: float, lost: list[float]
) -> None:
    of_main = line("train.py:30", 1000.0, library="torch._tensor.backward")
    thread = ThreadTime(
        *("node-a", 0, "training", 1, 1000.0, ran, core_wait, 0.0),
        lines=(of_main,),
        known_seconds=known,
        others=(line("train.py:14", 700.0, function="summarise"), line("train.py:90", 9.0, function="read")),
    )
    run = replace(run_with(train__backward=0.95, train__host=0.05), threads=[thread])
    found = problems_of(run)
    assert [problem.seconds_lost for problem in found] == lost
    as_much = run_with(train__backward=1 - sum(lost) / 1000, train__host=sum(lost) / 1000)
    assert len(unexplained(replace(as_much, threads=[thread]))) == len(found), "own code waits for the lock"
    own = 0.15 + sum(lost) / 1000
    more = run_with(train__forward=0.1, train__backward=0.9 - own, train__host=own)
    seconds = {each.about.subject: each.seconds_lost for each in unexplained(replace(more, threads=[thread]))}
    assert seconds.pop("Your own code") == pytest.approx(150), "without its waits for the lock"
    assert list(seconds.values()) == pytest.approx(lost)
    for problem in found:
        assert problem.title == "Waiting for Python’s interpreter lock"
        assert problem.lines == "99 % in summarise, train.py:14"
        for ranks, waits in ((1, "thread waited"), (2, "thread of rank 0 waited")):
            assert waits in problems_of(replace(run, ranks=ranks))[0].rule.finding
    details = {"rank": 0, "component": "backward", "lines_of": "interpreter_lock"}
    slow = rule("Straggler", Status.FOUND, seconds_lost=900.0, details=details)
    assert problems_of(replace(run, rules=[slow]))[0].lines == "99 % in summarise, train.py:14"
    alone = replace(thread, others=thread.others[1:])  # samples fell on short waits: nobody held the lock
    assert not problems_of(replace(run, threads=[alone]))


def test_what_processes_of_one_rank_wait_for_at_the_same_time_is_lost_once() -> None:
    """Six at a time, of a run of 1,000 s: as in Hogwild, whose processes have no ranks of their own."""
    six = ThreadTime(
        *("node-a", 0, "training", 6, 6000.0, 4800.0, 600.0, 0.0),
        lines=(line("train.py:30", 6000.0, library="torch._tensor.backward"),),
        known_seconds=6000.0,
        others=(line("train.py:14", 3000.0, function="summarise"),),
    )
    run = replace(run_with(train__backward=1.0), threads=[six])
    assert [each.seconds_lost for each in unexplained(run)] == [100.0], "each waits 100 s for the lock"
    assert unexplained(replace(run, large=0.11)) == []
    slow = with_lines("before_first_step", 600, line("train.py:1", 1.0, library="import"))
    (found,) = unexplained(replace(slow, threads=[replace(six, ran_seconds=0.0)]))
    assert found.about.subject == "Before the first step", "each waits 100 s for a core, and starts for 600"
    without = account(START, START + 1000, [], {}, [replace(six, role="script")])
    assert without is not None
    assert without.share("without_steps", "core") == pytest.approx(0.1)


def test_time_that_was_seen_in_no_line_is_nobody_s_own_code_unless_no_line_was_sampled_at_all() -> None:
    run = run_with(train__host=0.3, train__forward=0.7)
    assert unexplained(run)
    assert run.account is not None
    host, forward = run.account.leaves
    seen = replace(forward, lines=(line("train.py:3", 700.0, library="torch.nn.modules.linear.forward"),))
    hidden = replace(run, account=replace(run.account, leaves=(host, seen)))
    assert not unexplained(hidden)
    assert unseen(hidden) == pytest.approx(0.3)
    assert not unseen(run)


@pytest.mark.parametrize(("in_graphs", "status"), [(0.9, "not enough data"), (0.09, "healthy")])
def test_graphs_that_may_wait_for_their_batches_inside_are_not_called_healthy(
    in_graphs: float, status: str
) -> None:
    run = run_with(train__forward=in_graphs, train__backward=1 - in_graphs)
    assert status_of_run(run) == "healthy"
    run = replace(run, gauges={GRAPHS_FETCH: 1.0})
    assert status_of_run(run) == status
    if status != "healthy":
        assert "90 % of the run is in graphs that fetch their batches" in " ".join(verdict(run).sentences)


def test_own_code_of_which_lines_show_most_is_not_unseen() -> None:
    run = with_lines("train__host", 300, line("train.py:3", 1.0))
    assert run.account is not None
    (host, *others) = run.account.leaves
    hardly = replace(host, lines=tuple(line("train.py:3", seconds) for seconds in (60.0, 60.0)))
    half = replace(host, lines=(line("train.py:3", 150.0),))
    assert not unseen(run)
    large, small = (replace(hardly, share=share) for share in (0.1, 0.09))
    for leaf, share in ((hardly, 0.3), (large, 0.1), (small, 0.0), (half, 0.0)):
        unclear = replace(run, account=replace(run.account, leaves=(leaf, *others)))
        assert unseen(unclear) == share


@pytest.mark.parametrize(("steps", "found"), [(1_990_000, True), (2_010_000, False)])
def test_what_the_plain_python_of_any_step_takes_is_no_own_code_to_mend(steps: int, found: bool) -> None:
    """A loss of two tensor operations takes a third of a step of 0.3 ms."""
    run = with_lines("train__host", 300, line("train.py:3", 1.0))
    short = replace(run, steps=[replace(steps_of_rank(), count=steps)])
    assert bool(unexplained(short)) == found


@pytest.mark.parametrize(
    "library",
    [
        "torch.nn.functional.cross_entropy",
        "torch._dynamo.eval_frame._fn",  # around `zero_grad`, for example: the first call imports much
        "torch._functorch.apis.wrapped",
        "torch.distributions.categorical.sample",
    ],
)
def test_what_pytorch_does_for_a_step_is_not_the_user_s_own_code(library: str) -> None:
    loss = line("train.py:3", 240.0, library=library)
    metric, print_ = line("train.py:4", 120.0), line("train.py:5", 20.0)
    (found,) = unexplained(with_lines("train__host", 400, loss, metric, print_))
    assert found.seconds_lost == pytest.approx(400 * 3 / 9.5), "lines with less than a tenth are no place"
    assert unexplained(with_lines("train__host", 300, loss, metric, print_)) == []


@pytest.mark.parametrize(
    ("library", "lost"),
    [
        ("torch.nn.modules.module.load_state_dict", 400),
        ("torch.nn.modules.module.zero_grad", 0),
        ("torch.nn.modules.module._call_impl", 0),
        ("torch.optim.optimizer.state_dict", 400),
        ("torch.optim.optimizer.zero_grad", 0),
        ("torch.distributed.distributed_c10d.all_gather_object", 400),
        ("torch.distributed.distributed_c10d.all_reduce", 0),
        ("torch.distributed.rpc.api.rpc_sync", 400),
        ("torch.distributed.rpc.api.shutdown", 0),
        ("torch.optim.swa_utils.update_parameters", 400),
        ("torch.optim.lr_scheduler.step", 0),
        ("torch.optim.sgd.__init__", 400),
        ("torch.nn.modules.linear.__init__", 400),
        ("keras.src.optimizers.adam.__init__", 400),
    ],
)
def test_copies_of_weights_objects_that_ranks_exchange_and_new_optimizers_are_the_script_s_choice(
    library: str, lost: float
) -> None:
    called = line("train.py:3", 400.0, library=library, phase="train")
    found = unexplained(with_lines("train__host", 400, called))
    assert sum(each.seconds_lost for each in found) == pytest.approx(lost)


def test_the_first_optimizer_and_the_first_model_are_set_up() -> None:
    makes = line("train.py:3", 250.0, library="torch.optim.sgd.__init__", phase="initialization")
    assert unexplained(with_lines("before_first_step", 250, makes)) == []


@pytest.mark.parametrize(
    ("function", "first", "lost"),
    [
        ("validate, train.py:9", 100.0, [100]),
        ("lightning.pytorch.trainer.trainer._run_sanity_check", 100.0, [100]),
        ("validate, train.py:9", 99.0, []),
        ("features, train.py:9", 100.0, []),  # what the training needs
    ],
)
def test_a_long_evaluation_before_anything_is_learned_is_found(
    function: str, first: float, lost: list[float]
) -> None:
    columns = {"eval": [first, 0.0, 50.0], "train": [0.0, 700.0, 100.0]}
    timeline = StepTimeline("n1", START, 300.0, 1, columns, 0, 1, [])
    stack = StackTime("eval", "forward", ("train.py:30", function), 150.0)
    thread = ThreadTime("n1", 0, "training", 1, 1000.0, 900.0, 0.0, 0.0, stacks=(stack,))
    run = run_with(train__forward=0.85, eval__forward=0.15)
    found = unexplained(replace(run, timelines=[timeline], threads=[thread]))
    assert [each.seconds_lost for each in found] == pytest.approx(lost)
    assert all(each.about.subject == "Evaluation before training" for each in found)


def test_the_loop_of_a_framework_is_not_the_user_s_own_code_but_what_they_gave_it_is() -> None:
    def is_found(library: str) -> bool:
        return bool(unexplained(with_lines("train__host", 400, line("train.py:9", 1.0, library=library))))

    for loop in (
        "fit: precision.precision.optimizer_step",
        "train: transformers.generation.logits_process.__call__",
        "train: transformers.integrations.sdpa_attention.sdpa_attention_forward",
        "train: xgboost.core.update",  # which a callback marks as steps
    ):
        assert not is_found(loop)
    assert is_found("fit: fabric.loggers.csv_logs.save")
    assert is_found("train: transformers.integrations.integration_utils.on_log")
    assert is_found("predict: sklearn.neighbors._base.kneighbors"), "no framework: it makes no steps"


def test_a_call_that_runs_whole_steps_is_the_loop_of_a_library_and_not_the_user_s_own_code() -> None:
    step = line("train.py:9", 2.0, library="pyro.infer.svi.step")
    model = line("train.py:3", 1.0)
    run = with_lines("train__host", 400, step, model)
    assert [found.seconds_lost for found in unexplained(run)] == [400]
    assert run.account is not None
    passes = [Leaf(Key("train", name), 0.1, {0: 100.0}, (step,)) for name in ("backward", "optimizer")]
    run = replace(run, account=replace(run.account, leaves=(*run.account.leaves, *passes)))
    (found,) = unexplained(run)
    assert found.seconds_lost == pytest.approx(400 / 3)
    assert found.details["places"] == ("train.py:3",)


# Rollouts: the model chooses actions without gradients, and an environment makes a step with each.
CHOOSES = line("train.py:9", 1.0, library="torch.distributions.categorical.sample")
COLLECTS = line("train.py:9", 2.0, library="learn: sb3.common.on_policy_algorithm.collect_rollouts")
ENVIRONMENT = line("env.py:3", 4.0, function="step")


@pytest.mark.parametrize(
    ("lines", "lost"),
    [
        ([CHOOSES, ENVIRONMENT], 400.0),
        ([line("train.py:7", 4.0, library="gymnasium.wrappers.common.step"), CHOOSES], 400.0),
        ([COLLECTS], None),  # what is trained on comes from there
        ([line("train.py:9", 1.0, library="torchrl.collectors._base.__iter__")], 500.0),
        ([replace(COLLECTS, seconds={"running": 1.0, "other": 3.0})], 500.0),  # it waits for environments
        ([CHOOSES, replace(ENVIRONMENT, seconds={"running": 0.45})], None),
    ],
)
def test_a_rollout_is_no_evaluation_and_a_finding_only_if_its_environment_is_slow(
    lines: list[LineTime], lost: float | None
) -> None:
    found = unexplained(with_lines("eval__host", 500, *lines))
    assert [(each.about.subject, each.seconds_lost) for each in found] == [("Rollouts", lost)] * bool(lost)
    assert all("environments" in each.recommendation for each in found)
    assert unexplained(with_lines("eval__host", 500, line("train.py:4", 1.0, function="validation_step")))


@pytest.mark.parametrize(
    ("name", "calls", "seconds", "is_found"),
    [
        ("sb3.evaluation.evaluate_policy", "gymnasium.core.step", 35.0, True),
        ("validate, train.py:3", "step, env.py:3", 35.0, True),
        ("sb3.evaluation.evaluate_policy", "gymnasium.core.step", 33.0, False),
        ("sb3.policies.evaluate_actions", "torch.nn.linear", 35.0, False),  # a part of the loss
        ("collect, train.py:3", "gymnasium.core.step", 35.0, False),
    ],
)
def test_evaluations_between_rollouts_are_a_finding_if_they_take_a_third_of_the_steps(
    name: str, calls: str, seconds: float, is_found: bool
) -> None:
    run = with_lines("eval__host", 500, CHOOSES, ENVIRONMENT)
    stacks = (
        StackTime("eval", "host", ("train.py:9", name, calls), seconds),
        StackTime("train", "forward", ("train.py:9", "torch.nn.linear"), 100.0 - seconds),
        StackTime("initialization", "", ("train.py:1", "import"), 900.0),
    )
    main = ThreadTime("n1", 0, "training", 1, 1000.0, 1000.0, 0.0, 0.1, (), stacks=stacks)
    found = unexplained(replace(run, threads=[main]))
    assert [each.about.subject for each in found] == ["Evaluation steps" if is_found else "Rollouts"]
    if is_found:
        assert run.account is not None
        steps = sum(map(run.account.share, PHASES))
        assert found[0].seconds_lost == pytest.approx(1000 * steps * 0.35)


def test_a_rollout_that_waits_for_environments_in_other_processes_names_their_lines() -> None:
    waits = line(
        "train.py:9", 0.1, 0.9, phase="eval", component="host", library="learn: sb3.subproc.step_wait"
    )
    runs = line("train.py:9", 0.9, 0.1, phase="eval", component="host", library="learn: sb3.buffers.add")
    child = ThreadTime("n1", 0, "child", 2, 1.0, 1.0, 0.0, 0.1, (ENVIRONMENT, line("", 1.0)))
    for spent, lines in ((waits, [ENVIRONMENT]), (runs, [runs])):
        main = ThreadTime("n1", 0, "training", 1, 1.0, 1.0, 0.0, 0.1, (spent,))
        assert list(lines_of(Key("eval", "host"), [main, child])) == lines


@pytest.mark.parametrize(("word", "is_found"), [("Account.large=16", False), ("Account.large=14", True)])
def test_the_share_of_the_run_from_which_a_part_is_a_finding_can_be_set(word: str, is_found: bool) -> None:
    set_to = evaluate(MemorySource(), Settings.parse([word])).large
    run = with_lines("train__host", 150, line("train.py:4", 3.0))
    assert bool(unexplained(replace(run, large=set_to))) is is_found


@pytest.mark.parametrize(("seconds", "state"), [(2.9, "not enough data"), (3.1, "found")])
def test_a_run_of_a_few_seconds_has_too_little_evidence_for_a_finding_and_for_none(
    seconds: float, state: str
) -> None:
    run = replace(run_with(train__host=0.4, train__forward=0.6), end=START + seconds)
    assert status_of_run(run) == state
    assert [one.title for one in problems_of(run)] == (["Your own code"] if state == "found" else [])
    if state != "found":
        sentence = "Not enough data: a run of 2.90 s is too short to judge your own code."
        assert verdict(run).sentence == sentence
        shorter = evaluate(MemorySource(), Settings.parse(["Account.shortest=2"])).shortest
        assert status_of_run(replace(run, shortest=shorter)) == "found"
    quick = replace(run_with(train__forward=1.0), end=START + seconds)
    assert status_of_run(quick) == "healthy"


def test_the_loop_of_keras_itself_is_not_the_script_s_own_code() -> None:
    fit = line("train.py:9", 1.0, library="keras.src.backend.tensorflow.trainer.fit")
    (found,) = unexplained(with_lines("train__host", 400, fit))
    assert found.about.subject == "Keras’s own loop"
    assert "Make epochs longer" in found.recommendation
    assert unexplained(with_lines("train__host", 90, fit)) == []
    untimed = with_lines("train__host", 1000, fit)  # its graphs are in this time, too
    assert untimed.account is not None
    (loop, *_) = untimed.account.leaves
    assert unexplained(replace(untimed, account=replace(untimed.account, leaves=(loop,)))) == []
    mine = line("train.py:4", 3.0, library="sklearn.cluster.kmeans.fit")
    assert {found.about.subject for found in unexplained(with_lines("train__host", 400, fit, mine))} == {
        "Your own code",
        "Keras’s own loop",
    }


@pytest.mark.parametrize(
    ("collects", "seconds", "together"),
    [
        ("train.py:4", 190.0, 590.0),
        ("train.py:5", 190.0, 590.0),  # in which it spends a tenth
        ("train.py:9", 190.0, 400.0),
        ("train.py:4 train.py:9", 190.0, 400.0),
        ("train.py:4 train.py:5 train.py:9", 190.0, 590.0),
        ("train.py:4", 399.0, 799.0),
        ("train.py:4", 400.0, 400.0),
    ],
)
def test_garbage_that_the_own_code_makes_is_part_of_its_cost(
    collects: str, seconds: float, together: float
) -> None:
    run = with_lines("train__host", 400, line("train.py:4", 9.0), line("train.py:5", 1.0))
    assert run.account is not None
    lines = [line(place, 190.0) for place in collects.split(" ")]
    garbage = Leaf(Key("train", "gc"), seconds / 1000, {0: seconds}, tuple(lines))
    run = replace(run, account=replace(run.account, leaves=(garbage, *run.account.leaves)))
    rows = [{"node": "a", "rank": 0, "triggered": 1}]
    host_bound = rule(
        "HostBound",
        Status.FOUND,
        seconds_lost=seconds,
        triggered=1,
        details={"component": "gc", "ranks": rows},
    )
    own = next(found for found in unexplained(run) if found.about.subject == "Your own code")
    assert own.seconds_lost == pytest.approx(together)
    assert len(problems([host_bound, own])) == (1 if together > 400 else 2)


@pytest.mark.parametrize("averages", [20.0, 120.0])
def test_objects_that_ranks_exchange_cost_their_communication_and_their_garbage_too(averages: float) -> None:
    library = "torch.distributed.distributed_c10d.all_gather_object"
    exchange = line("train.py:23", 100.0, library=library)
    run = with_lines("train__host", 90, exchange)
    assert run.account is not None
    gradients = line("train.py:18", averages, library="torch._tensor.backward")
    parts = {
        "communication": (150.0, (replace(exchange, seconds={"running": 80.0}), gradients)),
        "gc": (140.0, (exchange,)),
    }
    leaves = [
        Leaf(Key("train", name), lost / 1000, {0: lost}, lines) for name, (lost, lines) in parts.items()
    ]
    judged = rule("CommunicationBound", Status.HEALTHY)
    account = replace(run.account, leaves=(*leaves, *run.account.leaves))
    run = replace(run, account=account, rules=[judged])
    own = next(found for found in unexplained(run) if found.about.subject == "Your own code")
    assert own.seconds_lost == pytest.approx(90 + 80 / (80 + averages) * 150 + 140)
    (by_turns,) = problems(unexplained(replace(run, waited_by_turns=0.09)))
    assert by_turns.title == "Your own code", "which is what they wait for"
    rows = [{"node": "a", "rank": 0, "triggered": 1}]
    collected = rule(
        "HostBound", Status.FOUND, seconds_lost=140.0, details={"component": "gc", "ranks": rows}
    )
    assert [problem.title for problem in problems([collected, *unexplained(run)])] == ["Your own code"]
    straggler = rule("Straggler", Status.FOUND, seconds_lost=1.0)
    waiting = unexplained(replace(run, rules=[straggler]))
    assert own.about.subject not in [found.about.subject for found in waiting], "they may wait for it here"


def test_ranks_that_are_slow_by_turns_are_a_finding_unless_one_of_them_is_slow() -> None:
    run = run_with(train__forward=0.6, train__communication=0.4)
    judged = [rule("CommunicationBound", Status.HEALTHY)]
    uneven = replace(run, rules=judged, waited_by_turns=0.1, uneven_component="forward")
    (found,) = unexplained(uneven)
    assert found.finding.endswith("wait for it: most is forward pass.")
    assert found.details["component"] == "forward"
    assert (found.about.subject, found.seconds_lost) == ("Uneven work of ranks", 100.0)
    assert unexplained(replace(uneven, waited_by_turns=0.09)) == []
    short = run_with(train__forward=0.3, train__communication=0.2, after_last_step=0.5)
    assert [each.seconds_lost for each in unexplained(replace(uneven, account=short.account))] == [50.0]
    assert unexplained(replace(uneven, rules=[rule("Straggler", Status.FOUND), *uneven.rules])) == []


def test_a_checkpoint_of_one_rank_for_which_the_others_wait_is_a_finding_and_no_uneven_work() -> None:
    run = run_with(train__forward=0.6, train__communication=0.4)
    of_ranks = {"forward": (600.0, 600.0), "communication": (100.0, 400.0), "checkpoint": (300.0, 0.0)}
    leaves = tuple(
        Leaf(Key("train", name), sum(seconds) / 2000, dict(enumerate(seconds)))
        for name, seconds in of_ranks.items()
    )
    judged = rule("CommunicationBound", Status.HEALTHY)
    saving = replace(run, account=Account(2000.0, 2, leaves), rules=[judged], waited_by_turns=0.2)
    first, *more = problems(unexplained(saving))
    assert first.title == "Checkpoint"
    assert first.seconds_lost == pytest.approx(300.0)
    assert re.search("Rank 0 spends .* more than the others in checkpoint", first.finding)
    assert "Uneven work of ranks" not in {each.title for each in more}


@pytest.mark.parametrize(
    ("saves", "who"),
    [
        ([300, 0, 290, 0], "Ranks 0 and 2 spend up to 5 min more .*, and the others wait for them"),
        ([300, 0, 10, 0], "Rank 0 spends 5 min more .*, and they wait for it"),
        ([300, 0] * 6, "Ranks 0, 2, 4, 6 and 2 more spend up to 5 min more"),
    ],
)
def test_all_ranks_that_save_while_the_others_wait_are_named(saves: list[float], who: str) -> None:
    parts = {Key("train", "checkpoint"): saves, Key("train", "forward"): [600.0] * len(saves)}
    parts[Key("train", "communication")] = [400 - seconds for seconds in saves]
    ranks = len(saves)
    leaves = tuple(
        Leaf(key, sum(seconds) / (1000 * ranks), dict(enumerate(seconds))) for key, seconds in parts.items()
    )
    saving = replace(run_with(), account=Account(1000.0 * ranks, ranks, leaves))
    found, *_ = unexplained(replace(saving, rules=[rule("CommunicationBound", Status.HEALTHY)]))
    assert re.search(who, found.finding)
    assert (found.about.subject, found.details["rank"]) == ("Checkpoint", 0)
    assert found.seconds_lost == pytest.approx(300)


def test_a_rank_that_was_stopped_in_communication_is_a_finding_and_no_uneven_work() -> None:
    run = run_with(train__forward=0.6, train__communication=0.4)
    stopped = replace(run, stopped_seconds={0: 1.0, 1: 251.0}, waited_by_turns=0.2)
    judged = replace(stopped, rules=[rule("CommunicationBound", Status.HEALTHY)])
    (found,) = (problem.rule for problem in problems(unexplained(judged)))
    assert found.finding == (
        "25 % of the run, 4 min 10 s. Signals stopped rank 1 for 4 min 10 s more than the others, which wait "
        "for it."
    )
    assert "SIGSTOP" in found.recommendation
    bound = replace(rule("CommunicationBound", Status.FOUND), seconds_lost=400.0)
    (problem,) = problems([found, bound])
    assert (problem.rule, problem.also) == (found, [bound])
    apart = ["StepOutlier", "Account"]
    for component, rank, leaders in (
        ("backward", 1, ["Account"]),
        ("communication", 0, apart),
        ("communication", None, ["Account"]),  # nobody knows which rank was late
        ("backward", None, apart),
    ):
        details = {"component": component} | ({} if rank is None else {"culprit": {"rank": rank}})
        long = replace(rule("StepOutlier", Status.FOUND), seconds_lost=300.0, details=details)
        assert [each.rule.rule for each in problems([found, long])] == leaders
    assert unexplained(replace(run, stopped_seconds={0: 251.0}, rules=[bound])) == []
    for seconds, finds in ((100.0, 1), (99.0, 0)):
        assert len(unexplained(replace(run, stopped_seconds={0: 0.0, 1: seconds}, rules=[bound]))) == finds


def test_what_one_rank_does_outside_steps_explains_long_steps_in_which_the_others_wait_for_it() -> None:
    run = run_with(train__forward=0.95, train__communication=0.05)
    of_ranks = {("train", "forward"): (900.0, 900.0), ("train", "communication"): (10.0, 60.0)}
    of_ranks |= {("eval", ""): (60.0, 10.0), ("between_steps", ""): (30.0, 30.0)}
    leaves = tuple(
        Leaf(Key(*key), sum(seconds) / 2000, dict(enumerate(seconds))) for key, seconds in of_ranks.items()
    )
    long = replace(
        rule("StepOutlier", Status.FOUND), seconds_lost=50.0, details={"component": "communication"}
    )
    waiting = replace(run, account=Account(2000.0, 2, leaves), rules=[long])
    (found,) = unexplained(waiting)
    assert re.search("Rank 0 spends .* more than the others in evaluation steps", found.finding)
    assert unexplained(replace(waiting, rules=[replace(long, details={"component": "data_wait"})])) == []
    assert unexplained(replace(waiting, rules=[replace(long, seconds_lost=110.0)])) == []


def of_set_up(*places: str, library: str = "", seconds: float = 400) -> Analysis:
    """A run of 1,000 s, of which some are before the first step, in these lines."""
    return with_lines("before_first_step", seconds, *(line(place, 1.0, library=library) for place in places))


def test_a_line_that_takes_most_of_a_long_set_up_is_a_finding_and_imports_are_not() -> None:
    (found,) = unexplained(of_set_up("index.py:3"))
    assert (found.about.subject, found.seconds_lost) == ("Before the first step", 400.0)
    assert unexplained(of_set_up("train.py:1", library="import", seconds=299)) == []
    assert unexplained(of_set_up("a.py:1", "b.py:1", seconds=299)) == []
    assert len(unexplained(of_set_up("index.py:3", seconds=200))) == 1
    assert unexplained(of_set_up("index.py:3", seconds=199)) == []
    judged = replace(of_set_up("index.py:3"), rules=[rule("MaxInitializationTime", Status.FOUND)])
    assert unexplained(judged) == []


@pytest.mark.parametrize("key", ["before_first_step", "after_last_step"])
def test_a_library_that_waits_for_jax_to_compile_is_not_the_script_s_own_code(key: str) -> None:
    waits = replace(line("train.py:9", 0.0, library="numpyro.infer.svi.run"), seconds={"lock": 1.0})
    run = with_lines(key, 290, waits)
    assert unexplained(run)
    assert unexplained(replace(run, framework="jax 0.10.2")) == []
    for other in (replace(waits, library=""), replace(waits, seconds={"running": 0.6, "lock": 0.4})):
        assert unexplained(replace(with_lines(key, 290, other), framework="jax 0.10.2"))


@pytest.mark.parametrize(
    ("state", "library", "word"),
    [
        ("running", "", "Cache what"),
        ("other", "", "This line waits"),
        ("lock", "torch.utils.data.dataloader._try_get_data", "This line fetches batches"),
        ("running", "torch.multiprocessing.reductions.rebuild_storage_fd", "This line fetches batches"),
    ],
)
def test_a_line_of_the_set_up_is_a_finding_however_long_imports_take(
    state: str, library: str, word: str
) -> None:
    imports, polls = line("train.py:2", 5.0, library="import"), line("train.py:9", 0.0, library=library)
    polls = replace(polls, seconds={state: 4.0})
    run = with_lines("before_first_step", 600, imports, polls, line("train.py:12", 1.0))
    run = replace(
        run, threads=[ThreadTime("n1", 0, "training", 1, 1000.0, 900.0, 0.0, 0.1, (imports, polls))]
    )
    (found,) = unexplained(run)
    assert found.recommendation.startswith(word)
    (problem,) = problems_of(run)
    assert problem.lines.startswith("44 % in main, train.py:9"), "not the imports"


def test_own_code_names_its_own_lines_before_those_of_a_framework_s_loop() -> None:
    loop = line("train.py:40", 0.6, library="fit: lightning.pytorch.loops.epoch_loop.advance", phase="train")
    own = line("model.py:9", 0.4, phase="train", function="metric")
    run = with_lines("train__host", 900, *(replace(each, component="host") for each in (loop, own)))
    assert run.account is not None
    lines = run.account.leaves[0].lines
    run = replace(run, threads=[ThreadTime("n1", 0, "training", 1, 1000.0, 900.0, 0.0, 0.0, lines)])
    assert [problem.lines for problem in problems_of(replace(run, rules=[]))] == [
        "40 % in metric, model.py:9"
    ]


def test_a_start_of_one_rank_for_which_the_others_wait_names_its_lines() -> None:
    def of_rank(rank: int, at: LineTime) -> ThreadTime:
        return ThreadTime("n1", rank, "training", 1, 1000.0, 500.0, 0.0, 0.0, (at,))

    prepares, less = line("prepare.py:3", 200.0), line("prepare.py:3", 199.0)
    waits = line("train.py:9", 400.0, library="torch.distributed.distributed_c10d.barrier")
    leaf = Leaf(Key("before_first_step"), 0.4, {0: 400.0, 1: 400.0}, (prepares, waits))
    run = run_with(train__forward=0.6)
    run = replace(run, account=Account(2000.0, 2, (leaf,)), threads=[of_rank(0, prepares), of_rank(1, waits)])
    (found,) = unexplained(run)
    assert found.seconds_lost == pytest.approx(200.0)
    assert found.details["rank"] == 0
    assert "Rank 0 spends 3 min 20 s" in found.finding
    assert unexplained(replace(run, threads=[of_rank(0, less), of_rank(1, waits)])) == []
    assert unexplained(replace(run, threads=[of_rank(0, prepares), of_rank(1, prepares)])) == []
    assert "load only what the first steps need" in found.recommendation
    several = [of_rank(0, prepares), of_rank(1, prepares), of_rank(2, waits)]
    assert unexplained(replace(run, threads=several)) == [], "two of three are not one alone"


def test_a_rank_that_polls_for_what_another_one_prepares_does_nothing_of_its_own() -> None:
    def of_rank(rank: int, state: str, seconds: float, library: str = "") -> ThreadTime:
        at = replace(line(f"start.py:{rank}", 0.0, library=library), seconds={state: seconds})
        return ThreadTime("n1", rank, "training", 1, 1000.0, 500.0, 0.0, 0.0, (at,))

    prepares, polls = of_rank(0, "running", 400.0), of_rank(1, "other", 400.0, "time.sleep")
    leaf = Leaf(Key("before_first_step"), 0.4, {0: 400.0, 1: 400.0}, (*prepares.lines, *polls.lines))
    run = replace(run_with(train__forward=0.6), account=Account(2000.0, 2, (leaf,)))
    (found,) = unexplained(replace(run, threads=[prepares, polls]))
    assert found.details["rank"] == 0
    assert found.seconds_lost == pytest.approx(400.0)
    assert found.recommendation.startswith("Cache what")
    (found,) = unexplained(replace(run, threads=[of_rank(0, "running", 100.0), polls]))
    assert found.details["rank"] == 1, "it polls too rarely"
    assert found.seconds_lost == pytest.approx(300.0)
    assert found.recommendation.startswith("This line waits")
    assert unexplained(replace(run, threads=[prepares, of_rank(1, "running", 400.0)])) == []


def test_advice_on_what_one_rank_does_after_training_is_not_about_the_start() -> None:
    tests = line("test.py:3", 200.0, phase="finalization")
    leaf = Leaf(Key("after_last_step"), 0.2, {0: 200.0, 1: 200.0}, (tests,))
    ranks = [
        ThreadTime("n1", rank, "training", 1, 1000.0, 500.0, 0.0, 0.0, (tests,)[rank:]) for rank in (0, 1)
    ]
    run = replace(run_with(train__forward=0.8), account=Account(2000.0, 2, (leaf,)), threads=ranks)
    (found,) = unexplained(run)
    assert found.details["rank"] == 0
    assert found.recommendation.startswith("Do it less often, or in another job")
    meanwhile = Leaf(Key("after_last_step"), 0.1, {0: 200.0, 1: 0.0}, (tests,))
    assert unexplained(replace(run, account=Account(2000.0, 2, (meanwhile,)))) == [], "rank 1 trains on"


@pytest.mark.parametrize(
    ("after", "steps", "lost"),
    [
        ((420.0, 20.0), (150, 240), 200.0),
        ((219.0, 20.0), (150, 240), None),  # too little
        ((420.0, 20.0), (195, 240), None),  # something else takes longer
        ((420.0,), (150,), None),
    ],
)
def test_ranks_that_have_no_more_batches_wait_for_the_others(
    after: tuple[float, ...], steps: tuple[int, ...], lost: float | None
) -> None:
    leaf = Leaf(Key("after_last_step"), 0.2, dict(enumerate(after)))
    run = replace(
        run_with(),
        account=Account(1000.0 * len(after), len(after), (leaf,)),
        steps=[steps_of_rank(rank, count=count, typical=4.0) for rank, count in enumerate(steps)],
    )
    found = unexplained(run)
    assert [each.seconds_lost for each in found] == ([] if lost is None else [pytest.approx(lost)])
    assert all(
        "Rank 0 had no more batches 6 min 40 s before rank 1: they made 150 and 240 training steps."
        in each.finding
        for each in found
    )


def test_a_start_that_takes_longer_than_the_loop_is_a_finding_with_its_lines() -> None:
    imports, loads = line("train.py:1", 4.0, library="import"), line("load.py:8", 3.0, function="weights")
    tenth = line("train.py:9", 1.0)
    run = with_lines("before_first_step", 600, imports, loads, line("train.py:8", 2.0), tenth)
    (found,) = unexplained(run)
    assert (found.about.subject, found.seconds_lost) == ("Before the first step", 600.0)
    assert found.finding == (
        "60 % of the run, 10 min. From the first step to the last it took 40 %. The time before it went into "
        "main, train.py:1 (import) (40 %), weights, load.py:8 (30 %), main, train.py:8 (20 %) and main, "
        "train.py:9 (10 %)."
    )
    (unsampled,) = unexplained(run_with(before_first_step=0.6, train__forward=0.4))
    assert "was not sampled" in unsampled.finding
    for cut_short in ({"end": None}, {"exit_status": 1}, {"stopped_by": "you"}):
        assert unexplained(replace(run, **cut_short)) == []
    assert run.account is not None
    for shares, seconds, finds in (((0.6, 0.4), 29.9, 0), ((0.6, 0.4), 30.0, 1), ((0.5, 0.5), 200.0, 0)):
        leaves = zip(run.account.leaves, shares, strict=True)
        parts = tuple(replace(leaf, share=share, by_rank={0: seconds}) for leaf, share in leaves)
        brief = replace(run, account=Account(2 * seconds, 1, parts))
        assert [each.about.subject for each in unexplained(brief)] == ["Before the first step"] * finds
    starved = ThreadTime("node-a", 0, "training", 1, 1000.0, 400.0, 571.0, 0.0)
    assert unexplained(replace(run, threads=[starved])) == []


def test_a_start_of_five_minutes_is_a_finding_from_a_tenth_of_the_run_on() -> None:
    for share, large, finds in ((0.3, 0.3, True), (0.3, 0.31, False), (0.29, 0.1, False)):
        run = replace(run_with(before_first_step=share, train__forward=1 - share), large=large)
        assert [each.about.subject for each in unexplained(run)] == ["Before the first step"] * finds


def test_a_run_is_accounted_its_gpus_busy_or_perhaps_idle_from_limits_on() -> None:
    def with_gpu(mean: float, p95: float, most: float) -> Analysis:
        use = GpuUse("node-a", "GPU 0", mean, mean, p95, most, 50.0, 50.0, 50.0, 8e9)
        return replace(run_with(), rules=[rule("LowGPUUtilization", Status.COLLECTING)], gpu_use=[use])

    for share, accounted in ((0.05, False), (0.049, True)):
        assert is_accounted(run_with(train__forward=1 - share, unknown=share).account) is accounted
    for mean, busy in ((69.9, False), (70.0, True)):
        run = with_gpu(mean, 99.0, 99.0)
        unread = replace(run.gpu_use[0], gpu="GPU 1", mean=float("nan"))
        assert is_busy(run) is is_busy(replace(run, gpu_use=[unread, *run.gpu_use])) is busy
        assert not is_busy(replace(run, gpu_use=[unread]))
    for p95, most, idle in ((0.0, 0.0, False), (0.0, 0.1, True), (69.9, 99.0, True), (70.0, 99.0, False)):
        assert bool(perhaps_idle(with_gpu(0.0, p95, most))) is idle, "one that nobody uses is not the run's"
