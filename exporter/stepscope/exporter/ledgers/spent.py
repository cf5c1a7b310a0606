"""The time of a training process by part: as it passes for the exporter, and afterwards for a report."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stepscope.exporter.ledgers.ages import HOST, OTHER, Place
from stepscope.exporter.ledgers.reader import LedgerTotals
from stepscope.training.layout import COMPONENTS, PHASES

BEFORE, BETWEEN = "before_first_step", "between_steps"
CHECKPOINT = "checkpoint"  # the only component that counts outside steps: many scripts save between two


class Key(NamedTuple):
    """A part of the run, and a component of it: of steps, or the state of a main thread without steps."""

    part: str
    component: str = ""

    @property
    def label(self) -> str:
        """Returns "between_steps", "train/forward"."""
        return f"{self.part}/{self.component}" if self.component else self.part


def main_phase(phases: Mapping[str, float]) -> str:
    """Returns the phase that the run is for: training, or otherwise the one with most seconds."""
    here = [phase for phase in PHASES if phases.get(phase, 0.0) > 0]
    return "train" if "train" in here or not here else max(here, key=lambda phase: phases[phase])


def from_first_step_to_last(
    phases: Mapping[str, float], components: Mapping[str, float], inside: Mapping[str, Sequence[float]]
) -> dict[Key, float]:
    """Returns the seconds between steps, and of each component in the steps of each phase.

    `components` also has what was outside steps; `inside` has the seconds of each of COMPONENTS in the steps
    of a phase. If that of the main phase is not known, it has what the others lack.
    """
    main = main_phase(phases)
    rest = {name: components.get(name, 0.0) for name in COMPONENTS}
    parts = {phase: dict(zip(COMPONENTS, inside.get(phase, ()), strict=False)) for phase in PHASES}
    for named in parts.values():
        rest = {name: max(spent - named.get(name, 0.0), 0.0) for name, spent in rest.items()}
    if main not in inside:
        parts[main], rest = rest, {}
    saving = min(rest.get(CHECKPOINT, 0.0), phases.get(OTHER, 0.0))
    found = {Key(BETWEEN): phases.get(OTHER, 0.0) - saving}
    for phase, named in parts.items():
        if (seconds := phases.get(phase, 0.0)) > 0:
            whole = sum(named.values())
            shrink = min(1.0, seconds / whole) if whole else 1.0  # two clocks: parts may exceed the step
            found |= {Key(phase, name): spent * shrink for name, spent in named.items()}
            found[Key(phase, HOST)] = max(seconds - whole, 0.0)
    if saving:
        found[Key(main, CHECKPOINT)] = found.get(Key(main, CHECKPOINT), 0.0) + saving
    return found


class Spent:
    """The seconds of one process by part. They never fall, and always sum to its wall time.

    Finished steps say exactly what they took, but the open one only says where it is now, and since when. So
    the time since the last look goes to the parts that have less than is known of them. What is left counts
    as the host's, or as between steps. If that was wrong, the time after the step's end makes up for it.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # by the label of the part

    def look(self, start: float, totals: LedgerTotals, place: Place | None, stay: float, wall: float) -> None:
        """Counts the time up to `wall`, in seconds since `start`; `stay`: how long it is in its place."""
        known = {key.label: seconds for key, seconds in _known(start, totals).items()}
        here, otherwise = _now(totals, place)
        finished = sum(known.values())
        wall = max(wall, finished)  # two clocks
        known[here.label] = known.get(here.label, 0.0) + min(stay, wall - finished)
        counted = self.seconds
        lacks = {part: lack for part, spent in known.items() if (lack := spent - counted.get(part, 0.0)) > 0}
        elapsed, lacking = max(wall - sum(counted.values()), 0.0), sum(lacks.values())
        share = min(1.0, elapsed / lacking) if lacking else 0.0
        for part, lack in lacks.items():
            counted[part] = counted.get(part, 0.0) + share * lack
        if (rest := elapsed - share * lacking) > 0:
            counted[otherwise.label] = counted.get(otherwise.label, 0.0) + rest


def _known(start: float, totals: LedgerTotals) -> dict[Key, float]:
    """Returns what is known for good, up to the begin of the open step, otherwise the end of the last."""
    begun, phases = _begun(totals), dict(totals.phase_seconds)
    first, last = totals.first_step_start or begun, totals.last_step_end
    if begun is not None and last is not None:
        phases[OTHER] = phases.get(OTHER, 0.0) + max(begun - last, 0.0)
    before = {} if first is None else {Key(BEFORE): max(first - start, 0.0)}
    return before | from_first_step_to_last(phases, totals.component_seconds, totals.inside)


def _begun(totals: LedgerTotals) -> float | None:
    """Returns when the open step began, or the wait for its batch; the first step begins with its batch."""
    if totals.waiting_since is not None and not totals.steps_recorded:
        return None
    return totals.open_since or totals.waiting_since


def _now(totals: LedgerTotals, place: Place | None) -> tuple[Key, Key]:
    """Returns in which part the process is, and the one for what is not known of the time before."""
    phase = totals.open_phase or main_phase(totals.phase_seconds)
    component = place.component if place and place.component in COMPONENTS else HOST
    if _begun(totals) is not None:
        return Key(phase, component), Key(phase, HOST)
    outside = Key(BETWEEN if totals.steps_recorded else BEFORE)
    return (Key(phase, CHECKPOINT) if component == CHECKPOINT else outside), outside
