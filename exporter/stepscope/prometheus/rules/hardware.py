"""Alerts on hardware that fails, or is about to. They concern nodes, whether or not a run uses them.

Healthy hardware is silent: an idle GPU that lowers its PCIe generation, and a port that was never active.
Reports do not judge these rules, because recordings do not have these values.
"""

from __future__ import annotations

from stepscope.evaluation.settings import Settings
from stepscope.prometheus.rules.groups import Group
from stepscope.prometheus.rules.meta import Silence
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.promql import MINUTE, Alert, ratio
from stepscope.rules.parts.silences import (
    CorrectedMemoryErrors,
    DiskFilling,
    InfinibandErrors,
    InfinibandLinkDown,
    NVLinkErrors,
    PCIeLinkDegraded,
    PCIeReplays,
    PowerBrake,
)

GPU = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"
PORT = "Port {{ $labels.port }} of {{ $labels.device }} on {{ $labels.instance }}"
LINK = "stepscope_gpu_pcie_link"
UTILIZATION = "avg_over_time(stepscope_gpu_utilization_ratio[15m])"
NVLINK = "stepscope_gpu_nvlink_errors_total"
FATAL, NOT_FATAL = (f'kind{matches}"recovery|failed_recovery"' for matches in ("=~", "!~"))
FREE, SIZE = (f"stepscope_run_file_system_{which}_bytes" for which in ("free", "size"))
PORT_UP = "stepscope_infiniband_port_up"
# RoCE's out_of_sequence and the like also count congestion and adaptive routing.
LINK_ERRORS = (
    'kind=~"symbol_error|link_error_recovery|port_rcv_errors|local_link_integrity_errors'
    '|excessive_buffer_overrun_errors"'
)
_RESEAT = "Drain the node when the run ends. Reseat the GPU or its riser, and compare with another slot."
_CABLE = "Clean or replace the cable and its transceivers, then compare with another port of the switch."


def hardware_group(options: Options) -> Group:
    """Returns the alerts; docs/rules.md has a section on each."""
    found = [
        *_memory(options.settings),
        *_links_of_gpus(options.settings),
        *_infiniband(options),
        *_disks(options.settings),
    ]
    return {
        "name": "stepscope-hardware",
        "interval": time_span(max(MINUTE, options.scraping.interval)),
        "rules": [silence.entry(options) for silence in found],
    }


def _memory(settings: Settings) -> list[Silence]:
    """Returns the alerts on memory.

    Row remapping is NVIDIA's "GPU Memory Error Management". The threshold of corrected errors is our own.
    """
    corrected = settings.silence(CorrectedMemoryErrors).threshold
    return [
        Silence(
            "RowRemapping",
            Alert(
                "stepscope_gpu_row_remapping_failed == 1",
                f"{GPU} cannot replace a bad row of its memory",
                f"{GPU} could not remap a bad row of memory: uncorrectable errors will come again.",
                severity="critical",
                labels={"trouble": "failed"},
            ),
            "Take the GPU out of use, run dcgmi diag -r 3, and have it replaced.",
        ),
        Silence(
            "RowRemapping",
            Alert(
                "stepscope_gpu_row_remapping_pending == 1 or stepscope_gpu_page_retirement_pending == 1",
                f"{GPU} must be reset to replace bad memory",
                f"{GPU} replaces a bad row or page of memory at its next reset.",
                labels={"trouble": "pending"},
            ),
            "Reset the GPU (nvidia-smi --gpu-reset) or restart the node when the run ends.",
        ),
        Silence(
            "CorrectedMemoryErrors",
            Alert(
                f'increase(stepscope_gpu_ecc_errors_total{{severity="corrected"}}[1h]) > {corrected}',
                f"{GPU} corrects many memory errors",
                f"{GPU} corrected {{{{ $value | humanize }}}} memory errors in the last hour "
                f"(fires above {corrected}).",
                severity="info",
            ),
            "Nothing is lost yet. Plan a dcgmi diag -r 3 when the node is free.",
        ),
    ]


def _links_of_gpus(settings: Settings) -> list[Silence]:
    """Returns the alerts on links and power. Their thresholds have these sources:

    - 8 replays of PCIe per minute, and no recovery of NVLink: DCGM's health checks.
    - Other errors of NVLink: our own. DCGM warns from one on, and fails at 100 checksum errors per second.
    - The power brake: that of ThermalThrottling.
    """
    used = ratio(settings.silence(PCIeLinkDegraded).utilization)
    replays = settings.silence(PCIeReplays).threshold
    errors = settings.silence(NVLinkErrors).threshold
    brake = settings.silence(PowerBrake).threshold
    return [
        *(
            Silence(
                "PCIeLinkDegraded",
                Alert(
                    f"max_over_time({LINK}_{what}[15m]) < {LINK}_max_{what}\n  and {UTILIZATION} > {used}",
                    f"The PCIe link of {GPU} has a lower {what} than it could",
                    f"In use for 15 minutes, the PCIe link of {GPU} had at most {what} "
                    "{{ $value | humanize }}, below its maximum.",
                    labels={"trouble": what},
                ),
                _RESEAT,
            )
            for what in ("width", "generation")
        ),
        Silence(
            "PCIeReplays",
            Alert(
                f"increase(stepscope_gpu_pcie_replays_total[15m]) / 15 > {replays}",
                f"The PCIe link of {GPU} sends packets again",
                f"The PCIe link of {GPU} sent {{{{ $value | humanize }}}} packets per minute again "
                f"(fires above {replays}).",
            ),
            _RESEAT,
        ),
        Silence(
            "NVLinkErrors",
            Alert(
                f"sum without (kind) (increase({NVLINK}{{{FATAL}}}[15m])) > 0",
                f"An NVLink of {GPU} failed and had to recover",
                f"The NVLinks of {GPU} recovered, or failed to, {{{{ $value | humanize }}}} times in the "
                "last 15 minutes.",
                severity="critical",
                labels={"trouble": "recovery"},
            ),
            "Drain the node, run dcgmi diag -r 3 on all its GPUs, and check NVLink's connectors.",
        ),
        Silence(
            "NVLinkErrors",
            Alert(
                f"sum without (kind) (increase({NVLINK}{{{NOT_FATAL}}}[15m])) > {errors}",
                f"The NVLinks of {GPU} have many errors",
                f"The NVLinks of {GPU} had {{{{ $value | humanize }}}} checksum errors and replays in the "
                f"last 15 minutes (fires above {errors}).",
                labels={"trouble": "errors"},
            ),
            "Run dcgmi diag -r 3 on all GPUs of the node when the run ends.",
        ),
        Silence(
            "PowerBrake",
            Alert(
                'rate(stepscope_gpu_throttle_seconds_total{reason="hw_power_brake"}[15m]) '
                f"> {ratio(brake)}",
                f"The power brake slows {GPU}",
                f"The power brake slowed {GPU} for {{{{ $value | humanizePercentage }}}} of the last "
                f"15 minutes (fires above {brake:g} %).",
            ),
            "Check the node's power supplies and the rack's power limit: they make the board use less power.",
        ),
    ]


def _infiniband(options: Options) -> list[Silence]:
    """Returns the alerts on ports. The threshold of errors is that of ibqueryerrors, but per hour."""
    down = options.settings.silence(InfinibandLinkDown)
    recently = time_span(max(MINUTE * down.minutes, 2 * options.scraping.interval))
    errors = options.settings.silence(InfinibandErrors).threshold
    return [
        Silence(
            "InfinibandLinkDown",
            Alert(
                f"max_over_time({PORT_UP}[{recently}]) == 0 and max_over_time({PORT_UP}[1d]) == 1",
                f"{PORT} is down",
                f"{PORT} was active in the last day, and is not now.",
                labels={"trouble": "down"},
            ),
            _CABLE,
        ),
        Silence(
            "InfinibandLinkDown",
            Alert(
                f"increase(stepscope_infiniband_link_downed_total[1h]) > {down.threshold}",
                f"{PORT} loses its link again and again",
                f"{PORT} lost its link {{{{ $value | humanize }}}} times in the last hour "
                f"(fires above {down.threshold}).",
                labels={"trouble": "flapping"},
            ),
            _CABLE,
        ),
        Silence(
            "InfinibandErrors",
            Alert(
                f"increase(stepscope_infiniband_errors_total{{{LINK_ERRORS}}}[1h]) > {errors}",
                f"{PORT} has link errors",
                f"{PORT} had {{{{ $value | humanize }}}} errors ({{{{ $labels.kind }}}}) in the last hour "
                f"(fires above {errors}).",
            ),
            _CABLE,
        ),
    ]


def _disks(settings: Settings) -> list[Silence]:
    """Returns the alerts on file systems. Their thresholds are our own."""
    filling = settings.silence(DiskFilling)
    share = f"{FREE} / {SIZE}"
    place = "{{ $labels.mountpoint }} on {{ $labels.instance }}"
    remedy = "Delete old checkpoints, or keep fewer. A checkpoint that finds no space ends most runs."
    return [
        Silence(
            "DiskFilling",
            Alert(
                f"predict_linear({FREE}[6h], {60 * filling.minutes:.12g}) < 0\n"
                f"  and {share} < {ratio(filling.free)}\n  and {FREE} offset 1h\n"
                f"  unless {share} < {ratio(filling.full)}",
                f"{place} will be full soon",
                f"Run {{{{ $labels.run }}}} works in {place}. In {filling.minutes:g} min, it will lack "
                "{{ $value | humanize1024 }}B at the rate of the last 6 hours.",
                labels={"trouble": "filling"},
            ),
            remedy,
        ),
        Silence(
            "DiskFilling",
            Alert(
                f"{share} < {ratio(filling.full)}",
                f"{place} is full",
                f"Run {{{{ $labels.run }}}} works in {place}, of which {{{{ $value | humanizePercentage }}}} "
                f"is free (fires below {filling.full:g} %).",
                severity="critical",
                labels={"trouble": "full"},
            ),
            remedy,
        ),
    ]
