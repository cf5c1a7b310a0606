"""Modes and phases of Python profiles (smdebug.profiler.python_profile_utils)."""

from enum import Enum, IntEnum


class PythonProfileModes(IntEnum):
    """The phases of a run that a Python profile may be of."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4
    PRE_STEP_ZERO = 5
    POST_HOOK_CLOSE = 6

    @property
    def phase(self) -> str:
        """Returns the phase of `Run.lines`."""
        outside = {self.PRE_STEP_ZERO: "initialization", self.POST_HOOK_CLOSE: "finalization"}
        return outside.get(self, self.name.lower())


class StepPhase(Enum):
    """The parts of a step at which Debugger's profiles begin and end."""

    START = "start"
    STEP_START = "stepstart"
    FORWARD_PASS_END = "forwardpassend"
    STEP_END = "stepend"
    END = "end"
