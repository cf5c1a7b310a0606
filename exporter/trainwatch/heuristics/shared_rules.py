"""Rules in PromQL that two heuristics share: starved snapshots, and components of the step time."""

from __future__ import annotations

from trainwatch.heuristics.promql import Alert, PrometheusRules, Record, on_grid, ratio

SAMPLES = "trainwatch_samples_total"


def starved_rules(
    cause: str,
    above: tuple[str, float],
    gpu_threshold: float,
    threshold: float,
    patience: int,
    condition: str,
) -> PrometheusRules:
    """For CPUBottleneck and IOBottleneck; `above` is the name and value of the parameter of the cores."""
    record = f"run_instance:trainwatch_{cause}_starved:ratio"
    labels = ", ".join(
        (
            f'cause="{cause}"',
            f'cause_above="{on_grid(above[1], above[0])}"',
            f'gpu_below="{on_grid(gpu_threshold, "gpu_threshold")}"',
        )
    )
    return PrometheusRules(
        targets=SAMPLES,
        records=[
            Record(
                record,
                f"""
                trainwatch_gpu_starved_samples_total{{{labels}}}
                  / ignoring (cause, cause_above, gpu_below) {SAMPLES}
                """,
            )
        ],
        alerts=[
            Alert(
                f"{record} > {ratio(threshold)} and {SAMPLES} > {patience}",
                summary="GPUs of {{ $labels.instance }} wait for "
                + ("a busy core" if cause == "cpu" else "storage"),
                description=f"On {{{{ $labels.instance }}}}, {condition} in "
                "{{ $value | humanizePercentage }} of the snapshots of run {{ $labels.run }} "
                f"(fires above {threshold:g} %).",
            )
        ],
    )


def component_rules(
    component: str, threshold: float, patience: int, summary: str, verb: str
) -> PrometheusRules:
    """For DataStarved and CommunicationBound: a component's share of all step time of a rank."""
    record = f"run_instance_rank:trainwatch_{component}:ratio"
    steps = "sum without (phase) (trainwatch_step_duration_seconds_count)"
    return PrometheusRules(
        targets=steps,
        records=[
            Record(
                record,
                f"""
                trainwatch_step_component_seconds_total{{component="{component}"}}
                  / ignoring (component) sum without (phase) (trainwatch_step_duration_seconds_sum)
                """,
            )
        ],
        alerts=[
            Alert(
                f"{record} > {ratio(threshold)}\n  and {steps} > {patience}",
                summary=summary,
                description=f"Rank {{{{ $labels.rank }}}} of run {{{{ $labels.run }}}} on "
                f"{{{{ $labels.instance }}}} {verb} for {{{{ $value | humanizePercentage }}}} of its step "
                f"time (fires above {threshold:g} %).",
            )
        ],
    )
