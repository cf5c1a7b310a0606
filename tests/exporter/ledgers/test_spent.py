"""The time of a real training process, counted by part as it passes: the parts sum to its life."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.ledgers.ages import HOST, INITIALIZATION, Now, Place
from stepscope.exporter.ledgers.reader import LedgerReader, LedgerTotals, open_ledgers
from stepscope.exporter.ledgers.run_totals import Ledger
from stepscope.exporter.ledgers.spent import Spent
from stepscope.exporter.sampling.sample import Sample
from stepscope.training import layout
from stepscope.training.layout import COMPONENTS, PHASES

from tests.support.recording import totals as recorded_totals
from tests.support.training_process import TrainingProcess

CLOCK = 1_790_000_000.0
BATCH = """
stepscope.begin_step({phase!r})
for name, seconds in (('data_wait', {wait}), ('forward', {forward}), ('backward', {backward})):
    stepscope.begin_component(name); clock.now += seconds; stepscope.end_component()
clock.now += {host}; stepscope.end_step()
"""


class Watched:
    """A training process with a clock of its own, and the exporter's look at its ledger."""

    def __init__(self, ledgers: Path, trainer: TrainingProcess, seconds: float = 0.0) -> None:
        self._trainer, self.seconds = trainer, seconds
        (path,) = open_ledgers(ledgers)
        self.ledger = Ledger(LedgerReader(path), counts_losses=False)
        self.looks: list[dict[str, float]] = [{}]

    def do(self, code: str, seconds: float) -> dict[str, float]:
        """Runs code, after which the process's clock is `seconds` later, and looks."""
        self._trainer.do(code)
        return self.look(seconds)

    def look(self, seconds: float = 0.0) -> dict[str, float]:
        self.seconds += seconds
        self.ledger.read(Now(CLOCK + self.seconds, CLOCK + self.seconds))
        spent = dict(self.ledger.spent.seconds)
        assert all(spent[part] >= before for part, before in self.looks[-1].items()), "a counter fell"
        assert sum(spent.values()) == pytest.approx(self.seconds)
        self.looks.append(spent)
        return spent


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    return tmp_path / "ledgers"


@pytest.fixture
def watched(ledgers: Path) -> Iterator[Watched]:
    with TrainingProcess(ledgers, clock=CLOCK) as trainer:
        trainer.do("stepscope.start()")
        yield Watched(ledgers, trainer)


def batch(phase: str, wait: float, forward: float, backward: float, host: float) -> str:
    return BATCH.format(phase=phase, wait=wait, forward=forward, backward=backward, host=host)


def test_finished_steps_count_as_they_say_in_each_phase(watched: Watched) -> None:
    assert watched.do("clock.now += 3", 3) == {"before_first_step": 3}
    watched.do(batch("train", 1, 2, 3, 1), 7)
    watched.do(batch("train", 1, 2, 3, 1), 7)
    watched.do("clock.now += 2", 2)
    assert watched.do(batch("eval", 2, 2, 0, 0.5), 4.5) == {
        "before_first_step": 3,
        "train/data_wait": 2,
        "train/forward": 4,
        "train/backward": 6,
        "train/host": 2,
        "between_steps": 2,
        "eval/data_wait": 2,
        "eval/forward": 2,
        "eval/host": 0.5,
    }
    watched.do(batch("train", 0, 1, 0, 0) + batch("eval", 0, 3, 0, 0) + batch("train", 0, 1, 0, 0), 5)
    assert watched.looks[-1] == pytest.approx(
        {**watched.looks[-2], "train/forward": 6.0, "eval/forward": 5.0}
    )


def test_the_wait_for_the_very_first_batch_is_time_before_the_first_step(watched: Watched) -> None:
    watched.do(
        "from stepscope.training.session import recorder\n"
        "def batches():\n"
        "    while True: clock.now += 2; yield 1\n"
        "loader = iter(stepscope.watch(batches()))\n"
        "recorder.waiting(clock.now); clock.now += 5",
        5,
    )
    assert watched.looks[-1] == {"before_first_step": 5}
    trained = "next(loader); stepscope.begin_step(); clock.now += 1; stepscope.end_step()"
    watched.do(trained, 3)
    assert watched.looks[-1] == {"before_first_step": 7, "train/host": 1}
    watched.do(trained, 3)
    assert watched.looks[-1] == {"before_first_step": 7, "train/host": 2, "train/data_wait": 2}


def test_an_exporter_that_comes_late_counts_the_same(watched: Watched, ledgers: Path) -> None:
    code = batch("train", 1, 2, 3, 1) + batch("eval", 2, 2, 0, 0.5) + batch("train", 1, 0, 0, 0)
    watched.do("clock.now += 3", 3)
    early = watched.do(code + batch("predict", 0, 1, 0, 0), 13.5)
    assert Watched(ledgers, watched._trainer, 16.5).look() == pytest.approx(early)


def test_a_long_step_counts_where_it_is_and_its_end_corrects_what_was_not_known(watched: Watched) -> None:
    watched.do(batch("train", 1, 1, 1, 0), 3)
    watched.do("stepscope.begin_step('train'); stepscope.begin_component('forward'); clock.now += 20", 20)
    assert watched.looks[-1]["train/forward"] == 21
    watched.do("stepscope.end_component(); stepscope.begin_component('communication'); clock.now += 30", 30)
    assert watched.looks[-1]["train/communication"] == 30
    # Between two looks it was in three places: only the last is known.
    step = "stepscope.end_component(); stepscope.begin_component('{}'); clock.now += 0.25"
    watched.do(step.format("optimizer") + "\n" + step.format("checkpoint"), 0.5)
    assert watched.looks[-1]["train/checkpoint"] == 0.25
    assert watched.looks[-1]["train/host"] == 0.25
    watched.do("stepscope.end_component(); stepscope.end_step()", 0)
    found = watched.do(batch("train", 0, 1, 0, 1), 2)
    assert found == {
        "train/data_wait": 1,
        "train/forward": 22,
        "train/backward": 1,
        "train/communication": 30,
        "train/optimizer": 0.25,
        "train/checkpoint": 0.25,
        "train/host": 1,
    }


def test_a_process_that_stands_still_counts_there_until_it_is_killed(watched: Watched) -> None:
    watched.do(batch("train", 0, 1, 1, 0), 2)
    watched.do("stepscope.begin_step('train'); stepscope.begin_component('communication')", 0)
    for _ in range(10):
        watched.look(60)
    assert watched.looks[-1]["train/communication"] == pytest.approx(600)
    watched._trainer.kill()
    watched.look(0.5)
    assert watched.looks[-1]["train/communication"] == pytest.approx(600)
    assert not watched.ledger.alive


def test_a_checkpoint_between_steps_is_a_checkpoint_and_other_work_there_is_not_the_steps(
    watched: Watched,
) -> None:
    outside = "stepscope.begin_component({!r}); clock.now += {}; stepscope.end_component()"
    watched.do(outside.format("communication", 4), 4)
    watched.do(batch("train", 0, 1, 0, 1), 2)
    watched.do("stepscope.begin_component('checkpoint'); clock.now += 5", 5)
    assert watched.looks[-1]["train/checkpoint"] == 5
    watched.do("stepscope.end_component()\n" + outside.format("gc", 1), 1)
    assert watched.do(batch("train", 0, 1, 0, 1), 2) == {
        "before_first_step": 4,
        "train/forward": 2,
        "train/host": 2,
        "train/checkpoint": 5,
        "between_steps": 1,
    }


def test_a_process_that_ends_has_counted_its_whole_life(watched: Watched) -> None:
    watched.do(batch("train", 0, 1, 1, 0), 2)
    watched.do("clock.now += 8", 8)
    watched._trainer.do("clock.now += 1")
    watched._trainer.end()
    assert watched.look(1) == {"train/forward": 1, "train/backward": 1, "between_steps": 9}


def test_of_a_ledger_of_earlier_writers_components_of_evaluation_are_not_known(
    watched: Watched, ledgers: Path
) -> None:
    watched.do(batch("train", 1, 2, 0, 0) + batch("eval", 0, 2, 0, 1) + batch("train", 1, 2, 0, 0), 9)
    (path,) = open_ledgers(ledgers)
    content = bytearray(path.read_bytes())
    items = layout.SECTIONS_AT + 8
    content[items : items + 8] = layout.COUNTER_PHASE_COMPONENTS.to_bytes(8, "little")
    content[layout.COUNTERS_AT + 8 * layout.COUNTER_PHASE_COMPONENTS : layout.WORKERS_AT] = bytes(
        layout.WORKERS_AT - layout.COUNTERS_AT - 8 * layout.COUNTER_PHASE_COMPONENTS
    )
    path.with_name("earlier.ledger").write_bytes(content)
    totals = LedgerReader(path.with_name("earlier.ledger")).totals()
    assert totals.inside == {}
    spent = Spent()
    spent.look(CLOCK, totals, None, 0.0, 9.0)
    assert spent.seconds == pytest.approx({"train/data_wait": 1.5, "train/forward": 4.5, "eval/host": 3})


# -- over restarts -------------------------------------------------------------------------------------


class Exporter:
    """A collector on the clock of the training processes, which keeps its note in `state`."""

    def __init__(self, ledgers: Path, state: Path) -> None:
        state.mkdir(exist_ok=True)
        self.collector = TrainingCollector(ledgers)
        self.collector.remember_in(state)

    def at(self, seconds: float) -> dict[str, float]:
        """Returns what is published so many seconds after the start."""
        self.collector.collect(Sample(time=CLOCK + seconds))
        (family,) = (
            each for each in self.collector.families if each.name == "stepscope_account_seconds_total"
        )
        return {part: value for (_, _, part), value in family.samples.items()}


def test_a_killed_rank_that_starts_again_continues_its_counters(ledgers: Path, tmp_path: Path) -> None:
    exporter = Exporter(ledgers, tmp_path / "state")
    with TrainingProcess(ledgers, clock=CLOCK) as trainer:
        trainer.do(batch("train", 1, 2, 0, 0))
        trainer.do(
            "stepscope.begin_step('train'); stepscope.begin_component('communication'); clock.now += 4"
        )
        assert exporter.at(7) == {"train/data_wait": 1, "train/forward": 2, "train/communication": 4}
        trainer.kill()
    killed = exporter.at(8)
    assert sum(killed.values()) == 8
    with TrainingProcess(ledgers, clock=CLOCK + 9) as trainer:
        trainer.do(batch("train", 1, 2, 0, 0))
        again = exporter.at(12)
        assert again == {**killed, "train/data_wait": 2, "train/forward": 4}
        trainer.do("clock.now += 400")
        later = exporter.at(412)  # the first ledger is removed
        assert len(exporter.collector.ledgers) == 1
        assert later == {**again, "between_steps": 400}


def test_an_exporter_that_starts_again_in_a_long_step_continues(ledgers: Path, tmp_path: Path) -> None:
    exporter = Exporter(ledgers, tmp_path / "state")
    with TrainingProcess(ledgers, clock=CLOCK) as trainer:
        trainer.do("stepscope.begin_step('train'); stepscope.begin_component('forward'); clock.now += 20")
        exporter.at(20)
        trainer.do("stepscope.end_component(); stepscope.begin_component('backward'); clock.now += 10")
        before = exporter.at(30)
        assert before == {"train/forward": 20, "train/backward": 10}
        exporter.collector.close()
        exporter = Exporter(ledgers, tmp_path / "state")
        assert exporter.at(30.5) == {"train/forward": 20, "train/backward": 10.5}


# -- whatever a process says of itself -----------------------------------------------------------------


class Look(NamedTuple):
    totals: LedgerTotals
    place: Place | None
    stay: float
    wall: float


seconds = st.floats(0, 1e6)
places = st.none() | st.builds(
    Place, st.sampled_from((*COMPONENTS, HOST, INITIALIZATION)), st.just(""), seconds
)


@st.composite
def looks(draw: st.DrawFn) -> Look:
    """Draws what a ledger may say at a moment, however little it agrees with what it said before."""
    phases = draw(st.dictionaries(st.sampled_from((*PHASES, "other")), seconds))
    inside = st.lists(seconds, min_size=len(COMPONENTS), max_size=len(COMPONENTS))
    has_step = draw(st.booleans())
    totals = replace(
        recorded_totals(3 if has_step else 0),
        first_step_start=draw(seconds) if has_step else None,
        phase_seconds=phases,
        component_seconds=draw(st.dictionaries(st.sampled_from(COMPONENTS), seconds)),
        inside=draw(st.dictionaries(st.sampled_from(PHASES), inside)),
        open_phase=draw(st.sampled_from(("", *PHASES))),
        open_since=draw(st.none() | seconds),
        waiting_since=draw(st.none() | seconds),
    )
    return Look(totals, draw(places), draw(seconds | st.just(inf)), draw(seconds))


@given(st.lists(looks(), min_size=1, max_size=8))
def test_whatever_a_ledger_says_no_counter_falls_and_they_sum_to_the_time(drawn: list[Look]) -> None:
    spent, wall = Spent(), 1e7  # more than its steps took
    for look in drawn:
        before, wall = dict(spent.seconds), wall + look.wall
        spent.look(0.0, look.totals, look.place, look.stay, wall)
        assert all(spent.seconds[part] >= counted for part, counted in before.items())
        assert sum(spent.seconds.values()) == pytest.approx(wall, abs=1e-6)
        assert {part.split("/")[0] for part in spent.seconds} <= {
            "before_first_step",
            "between_steps",
            *PHASES,
        }
