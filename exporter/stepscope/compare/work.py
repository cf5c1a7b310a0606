"""How much work each run did: only runs that did the same work can be compared as a whole.

Work is counted in items (samples, tokens): the user gives them, or they are steps times the batch size of all
ranks. If they are not known in both runs, work is counted in steps.
"""

from dataclasses import dataclass
from typing import Literal

from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.parts import step_time

SAME_WORK = 0.01  # amounts of work that differ by less are the same

Unit = Literal["step", "item"]

WHOLE_RUN = ("duration", "cost", "energy")  # figures that grow with the work
PER_STEP = ("step_mean", "step_p50", "step_p95", "steps_per_second", "cost_per_1000_steps", "energy_per_step")


@dataclass(frozen=True)
class Work:
    """The work of both runs, in `unit`: what times and costs are compared per."""

    unit: Unit
    a: float | None  # of the whole run; None: not known
    b: float | None
    items_per_step: tuple[float, float] | None = None  # of A and B; None unless both are known
    same_steps: bool = True  # False: the runs have other numbers of ranks, and unknown batches

    @property
    def same(self) -> bool | None:
        """Returns whether both did the same work; None if that is not known."""
        if self.a is None or self.b is None or not self.same_steps:
            return None
        return abs(self.b - self.a) <= SAME_WORK * self.a

    @property
    def ratio(self) -> float:
        """Returns how many times the work of A was done by B; 1 for the same work, and if it is not known."""
        return self.b / self.a if self.same is False and self.a and self.b else 1.0

    def obstacle(self, figure: str) -> str:
        """Returns why a change of this figure does not show the speed; "" if it does."""
        if figure in WHOLE_RUN and self.same is not True:
            return "not known whether both did the same work" if self.same is None else "different work"
        if figure not in PER_STEP:
            return ""
        if self.unit == "item":
            return "different work per step"
        return "" if self.same_steps else "not known whether their steps are the same work"


def work_of(a: ComparedRun, b: ComparedRun, phase: str | None) -> Work:
    """Returns the work of both; per item if a step of B has other items than one of A."""
    if phase is None:
        return Work("item" if a.workload and b.workload else "step", a.workload, b.workload)
    steps = step_time(a, phase).count, step_time(b, phase).count
    of_a, of_b = items_per_step(a, phase), items_per_step(b, phase)
    if of_a is None or of_b is None:
        same = max(a.analysis.world_size, 1) == max(b.analysis.world_size, 1)
        return Work("step", *steps, same_steps=same)
    if abs(of_b - of_a) <= SAME_WORK * of_a:
        return Work("step", *steps, (of_a, of_b))
    return Work("item", steps[0] * of_a, steps[1] * of_b, (of_a, of_b))


def items_per_step(run: ComparedRun, phase: str) -> float | None:
    """Returns the items per step of all ranks together; None if they are not known."""
    if run.workload is not None:
        return run.workload / step_time(run, phase).count
    sizes = {loader.get("batch_size") for loader in run.analysis.loaders if loader["phase"] == phase}
    size = sizes.pop() if len(sizes) == 1 else None
    return None if size is None else float(size * max(run.analysis.world_size, 1))
