"""Makes steps of a script that makes none itself: out of what hooks see of its loop.

A training step goes from the end of an optimizer's step to the end of its next one, so time anywhere in the
loop counts. Without an optimizer, it ends at the request for the batch whose backward pass finds that the
gradients of the pass before were used.

A *batch* is the time from a request to a loader to the next request. It is *used* if a module is called in
it. Batches that are not used belong to the next one that is: they were fetched ahead, or for the same call.
What a backward pass follows is trained on. Other used batches are steps of the phase eval, which are taken
out of the training step around them:

- if gradients were disabled at the request, or in a pass
- if several come before the loader ends, or another is asked

One alone may be for a backward pass that is still to come. What the script does after the last batch of a
loader, such as computing metrics, is of that batch until training continues. It is not before training has
begun, nor at the end of the run.

Without any call, the script only reads its data. Before the first step, that is set-up, as is what follows
until a batch or a backward pass. With gradients disabled, it computes by functions: that is evaluation.
"""

from __future__ import annotations

from stepscope.training.layout import COUNTER_OWN
from stepscope.training.recorder import COMPONENT_INDEX, NOT_OPENED
from stepscope.training.session import recorder, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.training.loader import Waits

    Moment = tuple[float, ...]  # an answer of recorder.so_far()
    # When a batch was requested and there, how many were ready, and whether it was the first of a pass.
    Wait = tuple[float, float, int | None] | tuple[float, float, int | None, bool]
    # The begin and the end of a batch, whether it was used, its loader, and the wait for it.
    Batch = tuple[Moment, Moment, bool, "LoaderWaits", Wait | None]

_DATA_WAIT = COMPONENT_INDEX["data_wait"]
# Places in a Moment: of calls, and of what is not of an evaluation that it follows.
_CALLS = [1 + COMPONENT_INDEX[name] for name in ("forward", "backward", "compile")]
_APART = [1 + COMPONENT_INDEX[name] for name in ("checkpoint", "communication")]
NESTED = "an optimizer's step inside its own step"  # why hooks are careful, and see only the outer one
MOST_UNDECIDED = 1000  # batches of which it is not known whether they are trained on


class LoaderWaits(dict[str, "Waits"]):
    """The waits for one iterator of a loader, by the phase that its batches turn out to be of."""

    def __init__(self, waits: Callable[[str], Waits], workers: int | None = None) -> None:
        self._make = waits
        self._workers = workers
        self.queue_depth: Callable[[], int] | None = None
        self.started = 0.0  # seconds that the iterator took to start, until a wait includes them
        self.is_usual = False  # neither of the two
        self.ahead = False  # whether each batch is used after the request for the next one
        self.phase = ""  # that the script gave, if it watches the loader by hand

    def are_made_by(self, inner: LoaderWaits) -> None:
        """Counts with the settings of a loader with workers that the dataset of this one asks."""
        if inner._workers and self._workers == 0:
            make, self._workers = self._make, inner._workers
            self._make = lambda phase: make(phase).made_by(inner._make(phase))
            self.clear()

    def __missing__(self, phase: str) -> Waits:
        waits = self[phase] = self._make(phase)
        waits.begin()
        return waits


class AutomaticSteps:
    """The loop of this process's training thread, as hooks see it. The only instance is `automatic`."""

    __slots__ = (  # faster than a dictionary, with caches that PyTorch leaves cold
        *("asked", "compiled", "end_compiled", "end_with_data", "evaluated", "evaluation", "failed", "first"),
        *("has_updated", "is_evaluation", "latest", "since", "trained", "undecided", "until", "unusual"),
        *("wait", "waits"),
    )

    def __init__(self) -> None:
        # An optimizer that made a step in compiled code, or a weak reference once garbage was collected,
        self.compiled: object = None
        self.end_compiled: Callable[[], None] = lambda: None  # and what to call at the next hook.
        self.unusual: set[str] = set()  # why hooks must now be careful at each call
        self.trained = False  # a backward pass since the request for the latest batch
        # What the end of the data calls, as long as no optimizer has used the gradients of the step.
        self.end_with_data: Callable[[], None] | None = None
        # Whether the script has updated the parameters since it requested their gradients.
        self.has_updated: Callable[[], bool] = bool
        # The latest batch: its loader (None: no batch), when it was requested, whether gradients were
        # disabled, and the wait for it, once that is over.
        self.waits: LoaderWaits | None = None
        self.asked: Moment = ()
        self.first: Moment = ()  # when the first batch of the run came: time before it is in no step
        self.evaluated = False
        self.failed = False  # whether an error ended a forward pass since then
        self.wait: Wait | None = None
        self.until: Moment = ()  # the end of the latest forward pass without gradients
        self.evaluation: Moment = ()  # the begin of an evaluation without a loader
        self.is_evaluation = False  # otherwise it may be a single pass for a step, as of a GAN's generator
        # The begin and the end of the latest batch of an evaluation, until it is known whether another one
        self.latest: tuple[Moment, Moment] | None = None  # comes. Otherwise what follows is of it,
        self.since: Moment = ()  # from here on.
        self.undecided: list[Batch] = []  # before the latest one

    def requested(self, waits: LoaderWaits, gradients: bool) -> int | None:
        """Begins a batch. Returns the place of its data_wait, which is open from now on.

        Returns None inside another wait, and if the script makes steps itself, or in another thread. Starts
        the run at its first use.
        """
        if not recorder.asks_here():
            return None
        if self.compiled is not None:
            self.end_compiled()
        self.end_evaluation()
        place = 0
        now = recorder.begin_wait()
        if now is None:
            if recorder.is_waiting():
                return None
            now = recorder.so_far()
            if now is None:
                self._forget()
                if not recorder.in_automatic_step():
                    return None
                now = recorder.so_far() or ()
            place = recorder.enter(_DATA_WAIT)
        if self.waits is not None:
            if self._is_over(now):
                self._end_batch(now, waits)
                if self.undecided and self._is_to_decide(waits, gradients):
                    self._decide()
                    recorder.in_automatic_step()
                    if recorder.begin_wait() is not None:  # a new step
                        place = 0
                now = recorder.so_far() or ()  # without what was taken out
            elif self.waits is waits:  # begun with its iterator
                self.evaluated = self.evaluated or not gradients
                return place
            else:  # the last batch of the loader before is still to be used
                waits.ahead = self.waits.ahead
        self.waits, self.asked, self.evaluated = waits, now, not gradients
        self.wait = None
        self.trained = self.failed = False
        return place

    def asks_inside(self, inner: LoaderWaits) -> None:
        """Says that the wait for the latest batch asks another loader."""
        if self.waits is not None:
            self.waits.are_made_by(inner)

    def came(self, wait: tuple[float, float, int | None, bool]) -> None:
        """Ends the wait for the batch."""
        self.wait = wait
        if self.latest is not None:
            self._end_latest()
        if wait[3] and recorder.first_batch_came():
            self.asked = self.first = recorder.so_far() or ()

    def ended(self) -> None:
        """Takes back the latest request: its loader has no batch left, or raised an error.

        If batches were fetched ahead, the last one is used from now on.
        """
        is_in_hand = self.waits is not None and self.waits.ahead and not self._are_set_up()
        if is_in_hand and (self._used() or len(self.undecided) < 2):
            self._end_latest()
            return
        self._decide(is_last=True)
        self._forget()
        if self.end_with_data is not None or not _has_trained():
            self._end_latest()
        if self.end_with_data is not None:
            self.end_with_data()
        elif self.latest is not None:
            self.since = recorder.so_far() or ()
            self.unusual.add("evaluation")
            recorder.show_phase("eval")

    def trains(self) -> None:
        """Says that gradients are computed. Those of another thread are for no batch of this loop."""
        if recorder.so_far() is not None:
            self.end_evaluation()
            self.trained = True

    def evaluates(self, begin: Moment | None, training: bool) -> None:
        """Says that a forward pass without gradients has just ended; `begin`: it may be of no batch.

        An evaluation without a loader lasts from the begin of its first such pass to the end of its last
        one. A module that was left in `training` mode evaluates if a second pass follows, and nothing is
        trained in between.
        """
        self.until = recorder.so_far() or ()
        if begin and self.until and self.latest is None:
            self.is_evaluation = bool(self.evaluation) or not training
            self.evaluation = self.evaluation or begin
            self.unusual.add("evaluation")
            if self.is_evaluation:
                recorder.show_phase("eval")

    def end_evaluation(self) -> None:
        """Ends the evaluation, and makes a step of one without a loader: training continues."""
        self._end_latest()
        begin, self.evaluation = self.evaluation, ()
        if begin:
            self.unusual.discard("evaluation")
            if self.is_evaluation:
                recorder.take_step_out("eval", begin, self.until)
            recorder.show_phase("train")

    def run_ends(self) -> None:
        """Makes a step of an evaluation that the end of the run ends: as far as its last pass."""
        self.since = ()
        self.end_evaluation()
        step = recorder.open_step()
        if self.waits is not None and step is not None and self._is_over(step[1]):
            self._end_batch(self.until if self.until > self.asked else step[1])
            self._decide()

    def step_ended(self, place: int) -> None:
        """Ends the training step: the optimizer has finished its step, the component at this place."""
        self.end_with_data = None
        self.end_evaluation()
        if self.waits is not None:
            self.undecided.append((self.asked, self.asked, False, self.waits, self.wait))
            self._forget("train")
        if not recorder.end_automatic_step(place):
            recorder.in_automatic_step()

    def updated(self, phase: str = "train") -> None:
        """Ends the training step whose gradients something used that is no optimizer: before this batch.

        Nothing used them if there is no phase: so far, the time is in no step.
        """
        if self.waits is not None:
            step = recorder.open_step()
            if step is not None and not self.trained:  # otherwise it is another pass for the same batch
                self._count(phase)
                recorder.take_step_out(phase, step[0], self.asked)
                self.asked = self.asked[0], *(0.0 for _ in self.asked[1:])
        elif phase:
            recorder.end_automatic_step(NOT_OPENED)
        else:
            recorder.drop_automatic_step()

    def begin_anew(self) -> None:
        """Drops the open step: a framework says that its loop begins here, or has ended."""
        if recorder.counts_here():
            self._end_latest()
            self.forget()
            recorder.drop_automatic_step()

    def forget(self) -> None:
        """Forgets what was not decided of an earlier loop, or of a run that has ended."""
        self.compiled = self.end_with_data = None
        self.has_updated = bool
        self.evaluation = self.until = self.first = self.since = ()
        self.latest = None
        self.unusual.discard("evaluation")
        self._forget()

    def batch_ended(self, phase: str, begin: Moment) -> None:
        """Makes a step of a batch of which a framework says that it is not trained on, and when it began."""
        end = recorder.so_far()
        if end is not None:
            if self.waits is not None and self.wait is not None:
                self.waits[phase].count(*self.wait)
            self._forget()
            recorder.take_step_out(phase, max(begin, self.first), end)

    def _is_over(self, now: Moment) -> bool:
        """Returns whether the latest batch has come, or what was asked before it was used since."""
        return self.wait is not None or self.trained or self._is_used(now)

    def _end_batch(self, now: Moment, asks: LoaderWaits | None = None) -> None:
        """Ends the latest batch, because the script asks this loader, and settles what is known by now."""
        used = self._is_used(now)
        if self.wait is None and self.until > self.asked:  # the last batch, of a loader that has ended
            now = _later(self.until, self.until, now if _has_trained() else self.until)
        goes_on = self.waits is asks
        if self.waits is not None:
            self.waits.ahead |= goes_on and not (used or self.trained)
            self.undecided.append((self.asked, now, used, self.waits, self.wait))
        if self.trained:
            self._forget("train")
        elif self.evaluated and used:
            self._take_out(is_last=goes_on)

    def _is_to_decide(self, asks: LoaderWaits, gradients: bool) -> bool:
        """Returns whether no backward pass comes for batches, now that the script asks this loader."""
        is_another = all(waits is not asks for _, _, _, waits, _ in self.undecided)
        if is_another and (self._used() or self.evaluated == gradients):
            return True
        return self._are_set_up(1 if is_another else 2) or len(self.undecided) > MOST_UNDECIDED

    def _decide(self, is_last: bool = False) -> None:
        """Decides about batches after which no backward pass came. Drops the step of what was only read."""
        used = self._used()
        if self._are_set_up():
            self._forget()
            recorder.drop_automatic_step()
        elif self.has_updated():
            self.has_updated = bool
            self._forget("train")
        elif used > 1 or (self.evaluated and not used and len(self.undecided) > 1):
            self._take_out(is_last)
        else:
            self._forget("train")

    def _are_set_up(self, at_least: int = 1) -> bool:
        """Returns whether so many batches were only read, before the first step."""
        if session.ledger is None or session.ledger.has_steps() or len(self.undecided) < at_least:
            return False
        return not (self.evaluated or any(used for _, _, used, _, _ in self.undecided))

    def _used(self) -> int:
        return sum(used for _, _, used, _, _ in self.undecided)

    def _is_used(self, now: Moment) -> bool:
        """Returns whether a module was called since the latest batch was requested, without an error."""
        return not self.failed and any(now[place] != self.asked[place] for place in _CALLS)

    def _take_out(self, is_last: bool = False) -> None:
        """Makes steps of evaluation of the batches: each ends with one that was used, if there is any.

        What follows may be of the last one, if `is_last`.
        """
        called = self._used()
        begun: Moment = ()
        for begin, end, used, _, _ in self.undecided:
            begun = begun or begin
            if used or not called:
                self._end_latest()
                self.latest = begun, end
                begun = ()
        self._forget("eval")
        if not is_last:
            self._end_latest()

    def _end_latest(self) -> None:
        """Makes a step of the latest batch of an evaluation, with what followed it as the last one."""
        if self.latest is None:
            return
        (begin, end), self.latest = self.latest, None
        since, self.since = self.since, ()
        if since:
            end = _later(end, since, recorder.so_far() or since)
        looked = recorder.take_step_out("eval", begin, end)
        if since:
            self.unusual.discard("evaluation")
            recorder.show_phase("train")
        if self.asked >= end:  # it was asked before this step was taken out
            parts = zip(self.asked[1:], begin[1:], end[1:], strict=True)
            self.asked = (
                self.asked[0] + looked,
                *(asked - (after - before) for asked, before, after in parts),
            )

    def _forget(self, phase: str = "") -> None:
        """Forgets the batches, after their waits have counted for this phase."""
        self._count(phase)
        self.waits = self.wait = None

    def _count(self, phase: str) -> None:
        """Forgets the batches before the latest one, after their waits have counted for this phase."""
        for _, _, _, waits, wait in self.undecided:
            if phase and wait is not None:
                waits[phase].count(*wait)
        self.undecided.clear()


def _has_trained() -> bool:
    """Returns whether this run has a training step."""
    return session.ledger is not None and session.ledger.counters[COUNTER_OWN] > 0.0


def _later(end: Moment, since: Moment, now: Moment) -> Moment:
    """Returns the end of an evaluation with what was done since, except for what is not of it."""
    parts = [now_at - before for now_at, before in zip(now, since, strict=True)]
    for place in _APART:
        parts[0] -= parts[place]
        parts[place] = 0.0
    return tuple(before + more for before, more in zip(end, parts, strict=True))


automatic = AutomaticSteps()
session.forgets.append(automatic.forget)
session.before_end = automatic.run_ends
