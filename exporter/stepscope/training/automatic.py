"""Makes steps of a script that makes none itself: out of what hooks see of its loop.

A training step goes from the end of an optimizer's step to the end of its next one, so time anywhere in the
loop counts. Without an optimizer, it ends at the request for the batch whose backward pass finds other
gradients than the pass before it left: they were used, and cleared.
A *batch* is the time from a request to a loader to the next request. Batches that were only evaluated are
steps of the phase eval, and are taken out of the training step around them. A batch with a backward pass
is never one of them. Any other is one if gradients were disabled at its request, or in a forward pass. Other
batches are one, too, if several come before the loader ends or the script asks another, and a module was
called meanwhile. Without a call, the script only reads its data: before the first step, that is set-up, as is
what follows until a batch or a backward pass. One batch alone may have been fetched ahead. A framework that
fetches the batches of an accumulated step together trains on them before it asks another loader.
"""

from __future__ import annotations

from stepscope.training.recorder import COMPONENT_INDEX, NOT_OPENED
from stepscope.training.session import recorder, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.training.loader import Waits

    Moment = tuple[float, ...]  # an answer of recorder.so_far()
    # When a batch was requested and there, how many were ready, and whether it was the first of a pass.
    Wait = tuple[float, float, int | None] | tuple[float, float, int | None, bool]

_DATA_WAIT, _FORWARD = COMPONENT_INDEX["data_wait"], COMPONENT_INDEX["forward"]
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
        self.ahead = False  # whether each batch is requested before the one before it is used
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

    __slots__ = (
        "ahead",
        "asked",
        "compiled",
        "end_compiled",
        "evaluated",
        "evaluation",
        "failed",
        "first",
        "is_evaluation",
        "passed",
        "trained",
        "undecided",
        "unusual",
        "updates",
        "wait",
        "waits",
    )

    def __init__(self) -> None:
        # An optimizer that made a step in compiled code, or a weak reference once garbage was collected,
        self.compiled: object = None
        self.end_compiled: Callable[[], None] = lambda: None  # and what to call at the next hook.
        self.unusual: set[str] = set()  # why hooks must now be careful at each call
        self.trained = False  # a backward pass since the request for the latest batch
        # Without an optimizer that hooks see: whether gradients came since the latest step, and whether steps
        # end by what uses them.
        self.passed = self.updates = False
        # The latest batch: its loader (None: no batch), when it was requested, whether gradients were
        # disabled, and the wait for it, once that is over.
        self.waits: LoaderWaits | None = None
        self.asked: Moment = ()
        self.first: Moment = ()  # when the first batch of the run came: time before it is in no step
        self.evaluated = False
        self.failed = False  # whether an error ended a forward pass since then
        self.ahead = False  # whether the latest loader has ended before its last batch was used
        self.wait: Wait | None = None
        # The begin and the end of an evaluation without a loader, as far as it is known.
        self.evaluation: tuple[Moment, Moment] | None = None
        self.is_evaluation = False  # otherwise it may be a single pass for a step, as of a GAN's generator
        # Batches of the same loader before it: their begins and ends, and waits.
        self.undecided: list[tuple[Moment, Moment, Wait | None]] = []

    def requested(self, waits: LoaderWaits, gradients: bool) -> int | None:
        """Begins a batch. Returns the place of its data_wait, which is open from now on.

        Returns None inside another wait, and if the script makes steps itself, or in another thread. Starts
        the run at its first use.
        """
        if not recorder.asks_here():
            return None
        if self.compiled is not None:
            self.end_compiled()
        if self.evaluation is not None:
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
            if self.waits is waits and self.wait is None and not self.trained:  # begun with its iterator
                self.evaluated = self.evaluated or not gradients
                return place
            self._end_batch(now)
            waiting = len(self.undecided)
            another, most = self.waits is not waits, MOST_UNDECIDED
            if (waiting and another) or waiting > most or (waiting > 1 and self._are_set_up()):
                self._decide()
                recorder.in_automatic_step()
                if recorder.begin_wait() is not None:  # a new step
                    place = 0
            now = recorder.so_far() or ()  # without what was taken out
        self.waits, self.asked, self.evaluated = waits, now, not gradients
        self.wait = None
        self.trained = self.failed = self.ahead = False
        return place

    def asks_inside(self, inner: LoaderWaits) -> None:
        """Says that the wait for the latest batch asks another loader."""
        if self.waits is not None:
            self.waits.are_made_by(inner)

    def came(self, wait: tuple[float, float, int | None, bool]) -> None:
        """Ends the wait for the batch."""
        self.wait = wait
        if wait[3] and recorder.first_batch_came():
            self.asked = self.first = recorder.so_far() or ()

    def ended(self) -> None:
        """Takes back the latest request: its loader has no batch left, or raised an error.

        If it was asked ahead, its last batch is used from now on. That is no evaluation if it trains.
        """
        waits = self.waits
        self._decide()
        self._forget()
        if self.passed and self.updates:
            self.passed = False
            recorder.end_automatic_step(NOT_OPENED)
        self.ahead = waits is not None and waits.ahead
        if waits is not None and self.ahead and "train" in waits:
            self.waits = waits

    def trains(self) -> None:
        """Says that gradients are computed. Those of another thread are for no batch of this loop."""
        if recorder.so_far() is not None:
            self.trained = True

    def evaluation_goes_on(self, begin: Moment, training: bool) -> None:
        """Says that a pass of an evaluation without a loader, which began then, has just ended.

        It lasts from the begin of its first forward pass to the end of its last one. A module that was left
        in `training` mode evaluates if a second pass follows, and nothing is trained in between.
        """
        end = recorder.so_far()
        if end is not None:
            self.is_evaluation = self.evaluation is not None or not training
            self.evaluation = self.evaluation[0] if self.evaluation else begin, end
            self.unusual.add("evaluation")
            if self.is_evaluation:
                recorder.show_phase("eval")

    def end_evaluation(self) -> None:
        """Makes a step of the evaluation without a loader: training continues."""
        if self.evaluation is not None:
            begin, end = self.evaluation
            self.evaluation, self.ahead = None, False
            self.unusual.discard("evaluation")
            recorder.show_phase("train")
            if self.is_evaluation:
                recorder.take_step_out("eval", begin, end)

    def step_ended(self, place: int) -> None:
        """Ends the training step: the optimizer has finished its step, the component at this place."""
        self.passed = False
        if self.evaluation is not None:
            self.end_evaluation()
        waits = self.waits
        if waits is not None:
            if self.wait is not None:
                waits["train"].count(*self.wait)
            if self.undecided:
                for _, _, wait in self.undecided:
                    self._count("train", wait)
                self.undecided.clear()
            self.waits = self.wait = None
            self.ahead = False
        if not recorder.end_automatic_step(place):
            recorder.in_automatic_step()

    def updated(self) -> None:
        """Ends the training step whose gradients something used that is no optimizer: before this batch."""
        if self.waits is None:
            recorder.end_automatic_step(NOT_OPENED)
        elif self.trained:  # another pass for the same batch
            return
        else:
            recorder.take_step_out("train", (), self.asked)
            self.asked = self.asked[0], *(0.0 for _ in self.asked[1:])
        self.passed, self.updates = False, True

    def begin_anew(self) -> None:
        """Drops the open step: a framework says that its loop begins here, or has ended."""
        if recorder.counts_here():
            self.forget()
            recorder.drop_automatic_step()

    def forget(self) -> None:
        """Forgets what was not decided of an earlier loop, or of a run that has ended."""
        self.compiled = self.evaluation = None
        self.unusual.discard("evaluation")
        self._forget()

    def batch_ended(self, phase: str, begin: Moment) -> None:
        """Makes a step of a batch of which a framework says that it is not trained on, and when it began."""
        end = recorder.so_far()
        if end is not None:
            self._count(phase, self.wait)
            self._forget()
            recorder.take_step_out(phase, max(begin, self.first), end)

    def _end_batch(self, now: Moment) -> None:
        """Ends the latest batch, and settles what is known by now."""
        if self.trained:
            self._count("train", self.wait)
            for _, _, wait in self.undecided:
                self._count("train", wait)
            self.undecided.clear()
            return
        self.undecided.append((self.asked, now, self.wait))
        if self.evaluated:
            self._take_out()
        elif self.waits is not None and _is_first(self.wait):
            self.waits.ahead = now[1 + _FORWARD] == self.asked[1 + _FORWARD]

    def _decide(self) -> None:
        """Decides about batches after which no backward pass came. Drops the step of what was only read."""
        if self.undecided:
            if self._are_set_up():
                if self.waits is not None:
                    self.waits.ahead = False
                self.undecided.clear()
                recorder.drop_automatic_step()
            elif len(self.undecided) > 1 and self._were_used():
                self._take_out()
        for _, _, wait in self.undecided:
            self._count("train", wait)
        self.undecided.clear()

    def _are_set_up(self) -> bool:
        """Returns whether the batches were only read, before the first step."""
        return session.ledger is not None and not session.ledger.has_steps() and not self._were_used()

    def _were_used(self) -> bool:
        """Returns whether a module was called since the batches were requested, without an error."""
        (begin, _, _), (_, end, _) = self.undecided[0], self.undecided[-1]
        return end[1 + _FORWARD] != begin[1 + _FORWARD] and not self.failed

    def _take_out(self) -> None:
        """Makes steps of evaluation of the batches before the latest.

        The first of those that were fetched ahead is a part of the next one: the last one is used later.
        """
        ahead = self.waits is not None and self.waits.ahead
        begun: Moment = ()
        for begin, end, wait in self.undecided:
            self._count("eval", wait)
            begun = begun or begin
            if not (ahead and _is_first(wait)):
                recorder.take_step_out("eval", begun, end)
                begun = ()
        self.undecided.clear()

    def _count(self, phase: str, wait: Wait | None) -> None:
        if wait is not None and self.waits is not None:
            self.waits[phase].count(*wait)

    def _forget(self) -> None:
        self.waits = self.wait = None
        self.undecided.clear()


def _is_first(wait: Wait | None) -> bool:
    return wait is not None and wait[3:] == (True,)


automatic = AutomaticSteps()
session.forgets.append(automatic.forget)
session.before_end = automatic.end_evaluation
