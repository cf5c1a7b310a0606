"""The analysis of data loaders (smdebug.profiler.analysis.utils.pytorch_dataloader_analysis)."""

from __future__ import annotations

from typing import Any

from stepscope.compat.smdebug.not_served import not_served


class PT_dataloader_analysis:  # noqa: N801  # smdebug's name
    """Raises NotImplementedError."""

    def __init__(self, pandas_frame: Any) -> None:
        raise not_served("PT_dataloader_analysis", "use run.loaders(), and data_wait_seconds of run.steps()")
