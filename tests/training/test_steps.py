"""What counts as a step and as a component, in every form of saying it."""

from pathlib import Path

import pytest
from stepscope.training.layout import COMPONENTS, STEP_BOUNDS

from tests.support.training_script import only_ledger, run_to_end

PLAIN = """
for _ in range(3):
    stepscope.begin_step("train")
    stepscope.begin_component("forward"); time.sleep(0.002); stepscope.end_component()
    stepscope.begin_component("backward"); time.sleep(0.004); stepscope.end_component()
    stepscope.end_step()
"""
CONTEXT_MANAGERS = """
for _ in range(3):
    with stepscope.step("train"):
        with stepscope.component("forward"): time.sleep(0.002)
        with stepscope.component("backward"): time.sleep(0.004)
"""
DECORATORS = """
@stepscope.component("forward")
def forward(x): time.sleep(0.002); return x + 1
@stepscope.component("backward")
def backward(x): time.sleep(0.004); return x + 1
@stepscope.step("train")
def train(x, *, more): return backward(forward(x)) + more
assert [train(i, more=10) for i in range(3)] == [12, 13, 14]
assert train.__name__ == "train"
"""
MARKS = """
for _ in range(3):
    stepscope.begin_step("train")
    time.sleep(0.002); stepscope.mark("forward")
    time.sleep(0.004); stepscope.mark("backward")
    stepscope.end_step()
"""
RECORDED = """
clock = time.perf_counter
for _ in range(3):
    start = clock()
    time.sleep(0.002); middle = clock()
    time.sleep(0.004); end = clock()
    stepscope.record_step("train", start, end, forward=middle - start, backward=end - middle)
"""


@pytest.mark.parametrize("form", [PLAIN, CONTEXT_MANAGERS, DECORATORS, MARKS, RECORDED])
def test_every_form_records_the_same_steps(form: str, ledgers: Path) -> None:
    run = run_to_end(form, ledgers)
    assert run.totals.steps == {"train": 3}
    assert [(step.number, step.phase) for step in run.steps] == [(0, "train"), (1, "train"), (2, "train")]
    assert run.lost == 0
    for step in run.steps:
        parts = dict(zip(COMPONENTS, step.components, strict=True))
        assert parts["forward"] >= 0.002
        assert parts["backward"] >= 0.004
        assert [name for name, seconds in parts.items() if seconds > 0] == ["forward", "backward"]
        assert sum(step.components) <= step.duration + 1e-9


def test_totals_histogram_and_squares_are_the_sums_of_the_steps(ledgers: Path) -> None:
    run = run_to_end(
        """
        end = time.perf_counter()
        for i in range(300):
            phase = ("train", "train", "eval")[i % 3]
            stepscope.record_step(phase, end - i / 64, end, i / 256, 0.0, i / 512)
        """,
        ledgers,
    )
    totals = run.totals
    assert totals.steps == {"train": 200, "eval": 100}
    assert totals.steps_recorded == 300
    for phase in ("train", "eval"):
        durations = [i / 64 for i in range(300) if (i % 3 == 2) == (phase == "eval")]
        counts, total = totals.step_histogram[phase]
        assert sum(counts) == len(durations)
        assert total == pytest.approx(sum(durations), rel=1e-9)
        assert totals.step_squared_seconds[phase] == pytest.approx(sum(d * d for d in durations), rel=1e-9)
        steps = [step for step in run.steps if step.phase == phase]
        assert [step.number for step in steps] == list(range(len(durations)))
        for i, bound in enumerate(STEP_BOUNDS):
            assert sum(counts[: i + 1]) == sum(step.duration <= bound for step in steps)
    assert totals.component_seconds["data_wait"] == sum(i / 256 for i in range(300))
    assert totals.component_seconds["backward"] == sum(i / 512 for i in range(300))
    assert sum(step.components[2] for step in run.steps) == totals.component_seconds["backward"]


def test_own_time_is_that_of_training_steps_without_communication(ledgers: Path) -> None:
    run = run_to_end(
        """
        record = stepscope.record_step
        for phase in ("train", "eval", "train"):
            record(phase, 1.0, 2.0, communication=0.25)
            record(phase, 1.0, 2.5, communication=9.0)
            record(phase, 1.0, 1.5)
        """,
        ledgers,
    )
    own = 2 * [0.75, 0.0, 0.5]
    assert run.totals.own_seconds == sum(own)
    assert run.totals.own_squared_seconds == sum(seconds**2 for seconds in own)


def test_a_clock_that_is_set_by_an_hour_makes_no_finalization_of_an_hour(ledgers: Path) -> None:
    script = """
    with stepscope.step("train"): pass
    real = time.time
    time.time = lambda: real() + 3600
    stepscope.finish()
    """
    assert run_to_end(script, ledgers).totals.phase_seconds["finalization"] < 3600


def test_phases_with_initialization_other_and_finalization_fill_the_whole_run(ledgers: Path) -> None:
    run = run_to_end(
        """
        stepscope.start()
        time.sleep(0.02)
        for phase in ("train", "eval", "train"):
            with stepscope.step(phase): time.sleep(0.01)
            time.sleep(0.01)
        """,
        ledgers,
    )
    totals = run.totals
    assert set(totals.phase_seconds) == {"train", "eval", "initialization", "other", "finalization"}
    assert all(seconds >= 0.01 for seconds in totals.phase_seconds.values())
    assert totals.end is not None
    assert totals.first_step_start == run.steps[0].start
    assert totals.last_step_end == pytest.approx(run.steps[-1].start + run.steps[-1].duration)


def test_a_component_in_a_component_pauses_the_outer_one(ledgers: Path) -> None:
    run = run_to_end(
        """
        with stepscope.step():
            with stepscope.component("backward"):
                with stepscope.component("communication"): time.sleep(0.2)
        """,
        ledgers,
    )
    (step,) = run.steps
    assert step.components[COMPONENTS.index("communication")] >= 0.2
    assert step.components[COMPONENTS.index("backward")] <= step.duration - 0.2


def test_a_component_outside_a_step_counts_as_time_but_for_no_step(ledgers: Path) -> None:
    run = run_to_end(
        """
        with stepscope.step(): pass
        with stepscope.component("checkpoint"): time.sleep(0.01)
        with stepscope.step(): pass
        """,
        ledgers,
    )
    assert run.totals.component_seconds["checkpoint"] >= 0.01
    assert [step.components[COMPONENTS.index("checkpoint")] for step in run.steps] == [0.0, 0.0]
    assert run.totals.phase_seconds["other"] >= 0.01


def test_a_step_inside_a_step_belongs_to_the_outer_one(ledgers: Path) -> None:
    run = run_to_end(
        """
        outer = stepscope.step("train")
        with outer:
            with outer:
                with stepscope.step("eval"), stepscope.component("forward"): time.sleep(0.01)
            with stepscope.component("forward"): time.sleep(0.01)
        """,
        ledgers,
    )
    (step,) = run.steps
    assert step.phase == "train"
    assert step.components[COMPONENTS.index("forward")] >= 0.02


def test_a_step_left_by_an_exception_is_not_counted_but_its_components_are_time(ledgers: Path) -> None:
    run = run_to_end(
        """
        try:
            with stepscope.step(), stepscope.component("forward"):
                time.sleep(0.01)
                raise MemoryError("as the user's")
        except MemoryError as error:
            say(error)
        with stepscope.step(): pass
        """,
        ledgers,
    )
    assert run.output == "as the user's\n"
    assert run.totals.steps == {"train": 1}
    assert run.totals.component_seconds["forward"] >= 0.01
    assert run.steps[0].components[1] == 0.0


def test_a_step_begun_and_never_ended_gives_way_to_the_next(ledgers: Path) -> None:
    run = run_to_end(
        """
        stepscope.begin_step("train")
        stepscope.begin_component("forward")
        stepscope.begin_step("train")
        stepscope.end_step()
        """,
        ledgers,
    )
    assert run.totals.steps == {"train": 1}
    assert run.steps[0].components == (0.0,) * len(COMPONENTS)
    assert run.totals.component_seconds["forward"] > 0.0


def test_ends_without_a_begin_and_marks_outside_a_step_do_nothing(ledgers: Path) -> None:
    run = run_to_end(
        """
        stepscope.end_step(); stepscope.end_component(); stepscope.mark("forward")
        with stepscope.component("gc"):
            with stepscope.step(): pass
        stepscope.end_step(); stepscope.end_component(); stepscope.mark("forward")
        """,
        ledgers,
    )
    assert run.totals.steps == {"train": 1}
    assert run.totals.component_seconds["forward"] == 0.0
    assert run.errors == ""


def test_components_still_open_end_with_their_step(ledgers: Path) -> None:
    run = run_to_end(
        """
        stepscope.begin_step()
        stepscope.begin_component("forward"); time.sleep(0.01)
        stepscope.end_step()
        stepscope.end_component()
        with stepscope.step(): pass
        """,
        ledgers,
    )
    assert run.steps[0].components[1] >= 0.01
    assert run.steps[1].components[1] == 0.0


@pytest.mark.parametrize(
    "inside",
    [
        "with stepscope.component('forwrad'): time.sleep(0.02)",
        "stepscope.begin_component('forwrad'); time.sleep(0.02); stepscope.end_component()",
        "time.sleep(0.02); stepscope.mark('forwrad')",
    ],
)
def test_an_unknown_component_gives_one_warning_and_counts_as_other(inside: str, ledgers: Path) -> None:
    run = run_to_end(
        f"""
        for _ in range(2):
            stepscope.begin_step()
            {inside}
            with stepscope.component("optimizer"): time.sleep(0.01)
            stepscope.end_step()
        """,
        ledgers,
    )
    warning = "unknown component 'forwrad': its time counts as other; did you mean forward?"
    assert run.errors == f"stepscope: {warning}\n"
    assert run.totals.steps == {"train": 2}
    assert all(step.components[3] >= 0.01 for step in run.steps)
    assert all(step.duration - sum(step.components) >= 0.02 for step in run.steps)


def test_an_unknown_component_pauses_the_one_around_it(ledgers: Path) -> None:
    run = run_to_end(
        """
        with stepscope.step():
            with stepscope.component("backward"):
                with stepscope.component("zzz"): time.sleep(0.05)
                time.sleep(0.01)
            with stepscope.component("optimizer"): time.sleep(0.01)
        """,
        ledgers,
    )
    assert "unknown component 'zzz': its time counts as other; use one of data_wait, forward" in run.errors
    (step,) = run.steps
    assert step.components[2] >= 0.01
    assert step.components[3] >= 0.01
    assert step.duration - sum(step.components) >= 0.05


def test_a_generator_or_coroutine_cannot_be_decorated(ledgers: Path) -> None:
    run = run_to_end(
        """
        stepscope.start()
        def generator(): yield 1
        async def coroutine(): pass
        for decorate in (stepscope.step("train"), stepscope.component("forward"), stepscope.fetch):
            for function in (generator, coroutine):
                try: decorate(function)
                except TypeError as error: say(error)
        """,
        ledgers,
    )
    assert run.output.count("use the context manager inside it") == 6


def test_calls_of_another_thread_leave_the_steps_alone(ledgers: Path) -> None:
    run = run_to_end(
        """
        import threading
        stop = threading.Event()
        errors = []
        def disturb():
            try:
                while not stop.is_set():
                    stepscope.begin_component("gc"); stepscope.mark("gc"); stepscope.end_component()
                    stepscope.end_step()
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=disturb) for _ in range(2)]
        sys.setswitchinterval(1e-5)
        with stepscope.step(): pass
        for thread in threads: thread.start()
        for _ in range(3000):
            with stepscope.step(), stepscope.component("forward"): pass
        stop.set()
        for thread in threads: thread.join()
        assert not errors, errors
        """,
        ledgers,
    )
    assert run.totals.steps == {"train": 3001}
    assert run.totals.component_seconds["gc"] == 0.0
    assert [step.number for step in run.steps] == list(range(3001))


def test_threads_that_all_step_never_corrupt_the_ledger(ledgers: Path) -> None:
    run = run_to_end(
        """
        import threading
        def steps():
            for _ in range(2000):
                stepscope.begin_step("train"); stepscope.mark("forward"); stepscope.end_step()
                now = time.perf_counter()
                stepscope.record_step("eval", now - 1.0, now)
        sys.setswitchinterval(1e-5)
        threads = [threading.Thread(target=steps) for _ in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
        ledgers,
    )
    totals = run.totals
    assert 0 < totals.steps_recorded <= 12000
    assert sum(totals.steps.values()) == totals.steps_recorded
    for phase, count in totals.steps.items():
        assert sum(totals.step_histogram[phase][0]) == count
    assert len(run.steps) + run.lost == totals.steps_recorded


def test_a_thread_that_reads_ahead_before_the_first_step_takes_no_steps_from_the_loop(ledgers: Path) -> None:
    run = run_to_end(
        """
        import threading
        from stepscope.training.automatic import LoaderWaits
        from stepscope.training.frameworks.computing import ask, got
        from stepscope.training.frameworks.computing import computing
        from stepscope.training.loader import Waits
        def read():
            waits = LoaderWaits(lambda phase: Waits(phase, (None, None, None), 0))
            for _ in range(3):
                asked = ask(waits)
                if asked is not None: got(asked, True)
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        for _ in range(4): computing.step_ended(computing)
        """,
        ledgers,
    )
    assert run.totals.steps == {"train": 3}, "the end of the first step begins the second one"
    assert run.totals.loaders == ()


def test_loops_of_keras_in_one_thread_after_the_other_all_make_steps(ledgers: Path) -> None:
    run = run_to_end(
        """
        import threading
        from stepscope.training.frameworks import keras_hooks
        class Trainer:
            def fit(self):
                keras_hooks._training_begins("", "")
                for _ in range(4): keras_hooks._trained()
                keras_hooks._training_ended()
        keras_hooks.hook_calls_of_loops(Trainer)
        Trainer().fit()
        for _ in range(2):
            thread = threading.Thread(target=Trainer().fit)
            thread.start()
            thread.join()
        """,
        ledgers,
    )
    assert run.totals.steps == {"train": 12}


KERAS = """
import threading
from types import SimpleNamespace
from stepscope.training.automatic import LoaderWaits
from stepscope.training.frameworks import keras_hooks
from stepscope.training.frameworks.computing import ask, got
from stepscope.training.loader import Waits
class CallbackList:
    def on_train_begin(self): pass
    def on_epoch_end(self): self.user()
    def on_train_batch_end(self): pass
    def on_train_end(self): pass
    def on_test_begin(self): pass
    def on_test_batch_end(self): pass
    def on_test_end(self): pass
    def user(self): pass
class Trainer:
    def fit(self, loop): loop()
keras_hooks.hook_loops(SimpleNamespace(CallbackList=CallbackList), "tensorflow", "3")
keras_hooks.hook_calls_of_loops(Trainer)
callbacks, other, fit = CallbackList(), CallbackList(), Trainer().fit
def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
"""


def test_what_another_thread_predicts_takes_nothing_from_the_loop_of_keras(ledgers: Path) -> None:
    script = """
def elsewhere(act):
    in_thread(lambda: fit(act))
def loop():
    callbacks.on_train_begin()
    for _ in range(4): callbacks.on_train_batch_end()
    callbacks.on_test_begin()
    for _ in range(3):
        elsewhere(other.on_test_begin)
        elsewhere(other.on_test_batch_end)
        callbacks.on_test_batch_end()
        elsewhere(other.on_test_end)
    callbacks.on_test_end()
    elsewhere(other.on_train_begin)
    elsewhere(other.on_train_batch_end)
    elsewhere(other.on_train_end)
    callbacks.on_train_batch_end()
    callbacks.on_train_end()
fit(loop)
"""
    assert run_to_end(KERAS + script, ledgers).totals.steps == {"train": 5, "eval": 3}


def test_the_keras_that_trains_is_named_although_another_one_was_imported_later(ledgers: Path) -> None:
    script = """
class Imported:
    def on_train_begin(self): pass
keras_hooks.hook_loops(SimpleNamespace(CallbackList=Imported), "tensorflow", "2")
def loop():
    callbacks.on_train_begin()
    callbacks.on_train_batch_end()
    callbacks.on_train_end()
fit(loop)
"""
    run_to_end(KERAS + script, ledgers)
    with only_ledger(ledgers) as reader:
        assert (reader.header.framework, reader.header.framework_version) == ("keras", "3 on tensorflow")


OWN_LOOP = """
import sys
from stepscope.training.automatic import automatic
from stepscope.training.frameworks import jax_hooks, tensorflow_hooks
from stepscope.training.frameworks.computing import FORWARD, computing
sys.modules["tensorflow.python.eager.context"] = SimpleNamespace(executing_eagerly=lambda: True)
waits = LoaderWaits(lambda phase: Waits(phase, (None, None, None), 0))
def step():
    got(ask(waits), True)
    place = computing.begin(FORWARD)
    in_thread(meanwhile)
    computing.end(place)
    computing.step_ended(computing)
"""


@pytest.mark.parametrize("hooks", ["jax_hooks", "tensorflow_hooks"])
def test_gradients_that_another_thread_computes_make_no_evaluation_a_training(
    hooks: str, ledgers: Path
) -> None:
    script = f"""
meanwhile = {hooks}._gradient_begins
for _ in range(4): step()
evaluated = LoaderWaits(lambda phase: Waits(phase, (None, None, None), 0))
for _ in range(3):
    got(ask(evaluated), True)
    automatic.evaluated = True
    in_thread(meanwhile)
for _ in range(4): step()
"""
    run = run_to_end(KERAS + OWN_LOOP + script, ledgers)
    assert run.totals.steps == {"train": 8, "eval": 3}


@pytest.mark.parametrize("hooks", ["jax_hooks", "tensorflow_hooks"])
def test_the_first_step_begins_once_its_gradients_are_traced_because_to_compile_it_may_never_end(
    hooks: str, ledgers: Path
) -> None:
    script = f"""
import os
from stepscope.training.frameworks.computing import Call
sys.modules["tensorflow.python.eager.context"].executing_eagerly = lambda: False
jax_hooks._running.calls.append(Call(jax_hooks._Function(), None))
tensorflow_hooks._running.functions.append(step)
tensorflow_hooks._running.outermost = Call(step, None)
{hooks}._gradient_begins()
os._exit(0)
"""
    totals = run_to_end(KERAS + OWN_LOOP + script, ledgers).totals
    assert (totals.open_phase, totals.component) == ("train", "compile")


def test_what_another_thread_compiles_is_no_compiling_of_the_step(ledgers: Path) -> None:
    script = """
def meanwhile(): jax_hooks._compiled("/jax/backend_compile_duration")
for _ in range(4): step()
"""
    seconds = run_to_end(KERAS + OWN_LOOP + script, ledgers).totals.component_seconds
    assert seconds["compile"] == 0.0
    assert seconds["forward"] > 0.0


def test_a_loop_of_keras_in_another_thread_hides_no_step_of_the_script_s_own_loop(ledgers: Path) -> None:
    script = """
def loop():
    other.on_train_begin()
    other.on_train_batch_end()
def meanwhile(): fit(loop)
for _ in range(4): step()
"""
    assert run_to_end(KERAS + OWN_LOOP + script, ledgers).totals.steps == {"train": 4}


def test_callbacks_that_a_script_calls_in_its_own_loop_neither_hide_nor_make_steps(ledgers: Path) -> None:
    script = """
def meanwhile(): pass
callbacks.on_train_begin()
for _ in range(4):
    step()
    callbacks.on_train_batch_end()
callbacks.on_epoch_end()
for _ in range(4): step()
"""
    assert run_to_end(KERAS + OWN_LOOP + script, ledgers).totals.steps == {"train": 8}


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_data_that_a_callback_of_keras_reads_is_no_wait_of_training(backend: str, ledgers: Path) -> None:
    script = """
from stepscope.training.frameworks import jax_hooks
from stepscope.training.frameworks.computing import computing, forward
def read():
    asked = ask(LoaderWaits(lambda phase: Waits(phase, (None, None, None), 0)))
    time.sleep(0.01)
    if asked is not None: got(asked, True)
    assert forward() is None, "of a model that the callback calls"
    place = jax_hooks._wait_begins()  # for the loss of the step
    time.sleep(0.01)
    computing.end(place)
def loop():
    callbacks.on_train_begin()
    for _ in range(4): callbacks.on_train_batch_end()
    callbacks.user = read
    callbacks.on_epoch_end()
    callbacks.on_train_batch_end()
    callbacks.on_train_end()
fit(loop)
"""
    run = run_to_end(KERAS.replace("tensorflow", backend) + script, ledgers)
    assert run.totals.steps == {"train": 5}
    assert run.totals.component_seconds["data_wait"] == 0.0
    assert run.totals.component_seconds["forward"] > 0.0
    assert run.totals.loaders == ()
