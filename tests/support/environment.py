"""The environment of processes that tests, trials and benchmarks start."""

import os


def unobserved() -> dict[str, str]:
    """Returns this environment without what is set for Stepscope."""
    return {name: value for name, value in os.environ.items() if not name.startswith("STEPSCOPE")}
