"""`stepscope rules render --gpu-source dcgm --host-source node-exporter`: their readings, our runs."""

import re
from pathlib import Path

import pytest
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.other_exporters import DCGM, NODE_EXPORTER, STEPSCOPE

from tests.prometheus.rules.test_existing_clusters import END, MIB, SCRAPES, always, cores, gpu
from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest, Values

BOTH = Options(gpu_source=DCGM, host_source=NODE_EXPORTER)
COARSE = {"resolution": "scrape"}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / RULES
    path.write_text(render(BOTH)[RULES])
    return path


def run_on(*nodes: str, run: str = "resnet-1") -> dict[str, Values]:
    """The counter of a run's samples, as our exporter gives it without collectors of GPUs and cores."""
    return {
        f'stepscope_samples_total{{job="stepscope",instance="{node}",run="{run}"}}': [
            30.0 * number for number in range(SCRAPES)
        ]
        for node in nodes
    }


def relabelled(series: dict[str, Values], pattern: str, by: str) -> dict[str, Values]:
    changed = {re.sub(pattern, by, name): values for name, values in series.items()}
    assert changed.keys() != series.keys()
    return changed


def dcgm(node: str, field: str, values: Values, more: str = "") -> dict[str, Values]:
    return {f'DCGM_FI_{field}{{job="dcgm",instance="10.0.0.1:9400",gpu="0",Hostname="{node}"{more}}}': values}


@needs_prometheus
def test_gpus_are_judged_below_at_and_above_the_thresholds(test: RuleTest) -> None:
    for node, percent in (("below", 69.9), ("at", 70.0), ("above", 70.1)):
        test.add(gpu(node, always(percent)))
    for node, used in (("part", 0.949), ("part-at", 0.95), ("nearly", 0.951)):
        test.add(gpu(node, always(95.0), used=used))
    test.add(run_on("below", "at", "above", "part", "part-at", "nearly"))
    test.firing("LowGPUUtilization", END, 1)
    test.firing("LowGPUUtilization", END, 1, instance="below", gpu="0", run="resnet-1", **COARSE)
    test.status("LowGPUUtilization", END, 0, instance="at")
    test.firing("GPUMemoryNearlyFull", END, 1)
    test.firing("GPUMemoryNearlyFull", END, 1, instance="nearly", trouble="full", **COARSE)
    test.status("GPUMemoryNearlyFull", END, 0, instance="part-at")


@needs_prometheus
def test_heat_counts_in_either_spelling_of_dcgm(test: RuleTest) -> None:
    for name, field in (("old", "DEV_CLOCK_THROTTLE_REASONS"), ("new", "DEV_CLOCKS_EVENT_REASONS")):
        for reasons, scrapes, fires in (
            (0x20, 3, 0),  # of 60: 5 %
            (0x20, 4, 1),
            (0x40 + 0x04, 3, 0),
            (0x40 + 0x04, 4, 1),  # by heat, and by the power limit
            (0x1F, SCRAPES, 0),
            (0x80, SCRAPES, 0),
        ):
            node = f"{name}-{reasons}-{scrapes}"
            cool = [4.0] * (SCRAPES - scrapes)
            test.add(dcgm(node, field, [*cool, *[float(reasons)] * scrapes]) | run_on(node))
            test.firing("ThermalThrottling", END, fires, instance=node, run="resnet-1", **COARSE)
            test.status("ThermalThrottling", END, fires, instance=node)
    test.firing("ThermalThrottling", END, 4)


@needs_prometheus
def test_errors_of_the_driver_of_memory_and_of_nvlink(test: RuleTest) -> None:
    def since(value: float, scrape: int = 50) -> Values:
        return [value if number >= scrape else 0.0 for number in range(SCRAPES)]

    test.add(dcgm("lost", "DEV_XID_ERRORS", since(79.0)))
    test.add(dcgm("program", "DEV_XID_ERRORS", since(31.0)))
    test.add(dcgm("old", "DEV_XID_ERRORS", always(79.0)))  # nobody knows since when
    test.add(dcgm("none", "DEV_XID_ERRORS", always(0.0)))
    test.add(dcgm("rows", "DEV_UNCORRECTABLE_REMAPPED_ROWS", since(1.0)))
    test.add(dcgm("bits", "DEV_ECC_DBE_VOL_TOTAL", since(2.0)))
    test.add(dcgm("link", "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", since(3.0)))
    test.add(dcgm("quiet", "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", always(3.0)))
    test.add(run_on("lost", "program", "old", "none", "rows", "bits", "link", "quiet"))
    test.firing("GPUError", END, 4)
    test.firing("GPUError", END, 1, instance="lost", trouble="xid", **COARSE)
    test.firing("GPUError", END, 1, instance="rows", trouble="memory")
    test.firing("GPUError", END, 1, instance="bits", trouble="memory")
    test.firing("GPUError", END, 1, instance="link", trouble="nvlink")


@needs_prometheus
def test_names_and_units_of_dcgm_exporter_4_9_are_known_too(test: RuleTest) -> None:
    new = {
        "GPU_UTIL": ("GPU_UTIL_RATIO", 0.01),
        "FB_USED": ("FB_USED_BYTES", 2**20),
        "FB_FREE": ("FB_FREE_BYTES", 2**20),
    }

    def since_4_9(series: dict[str, Values]) -> dict[str, Values]:
        changed: dict[str, Values] = {}
        for series_name, values in series.items():
            old = next(name for name in new if f"DEV_{name}{{" in series_name)
            name, factor = new[old]
            renamed = series_name.replace(f"DEV_{old}{{", f"DEV_{name}{{").replace("Hostname", "hostname")
            changed[renamed] = [None if value is None else factor * value for value in values]
        return changed

    late: Values = [*[None] * 50, *[1.0] * (SCRAPES - 50)]
    for node, percent, used in (
        ("low", 30.0, 0.4),
        ("full", 95.0, 0.951),
        ("lost", 95.0, 0.4),
        ("well", 95.0, 0.4),
    ):
        test.add(since_4_9(gpu(node, always(percent), used=used)))
    # An XID is only there from the first one on.
    for node in ("lost", "young"):
        test.add(dcgm(node, "DEV_XID_ERROR", [value and 79.0 for value in late]))
    test.add(dict.fromkeys(since_4_9(gpu("young", late)), late))  # nobody knows since when
    test.add(dcgm("rows", "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", [*[0.0] * 50, *[1.0] * (SCRAPES - 50)]))
    test.add(dcgm("link", "DEV_NVLINK_RECOVERY_ERROR_TOTAL", [*[0.0] * 50, *[1.0] * (SCRAPES - 50)]))
    profiled = since_4_9(gpu("profiled", always(95.0)))
    labels = next(iter(profiled)).partition("{")[2]
    test.add(profiled | {f"DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{{{labels}": always(0.3)})
    test.add(run_on("low", "full", "lost", "well", "young", "rows", "link", "profiled"))
    test.firing("LowGPUUtilization", END, 2)
    for node in ("low", "profiled"):
        test.firing("LowGPUUtilization", END, 1, instance=node)
    test.firing("GPUMemoryNearlyFull", END, 1)
    test.firing("GPUMemoryNearlyFull", END, 1, instance="full")
    test.firing("GPUError", END, 3)
    for node, trouble in (("lost", "xid"), ("rows", "memory"), ("link", "nvlink")):
        test.firing("GPUError", END, 1, instance=node, trouble=trouble)


def test_an_error_reaches_the_run_whatever_form_the_nodes_names_have_and_else_nothing_is_judged(
    test: RuleTest,
) -> None:
    """The exporter's collectors of GPUs and cores are off, so no reading is of our own."""
    fell_off = [79.0 if number >= 40 else 0.0 for number in range(SCRAPES)]
    for label, gpu_node, address in (("Hostname", "old", "10.0.0.7"), ("hostname", "new", "10.0.0.8")):
        names = {f"{gpu_node}-1": f"{gpu_node}-1.cluster.example", address: f"{address}:9400"}
        for ours, theirs in {**names, f"{gpu_node}-2.cluster.example": f"{gpu_node}-2"}.items():
            xid = dcgm(theirs, "DEV_XID_ERRORS", fell_off)
            test.add({name.replace("Hostname", label): values for name, values in xid.items()})
            test.add(run_on(ours))
            test.firing("GPUError", END, 1, instance=ours, run="resnet-1")
            test.status("GPUError", END, 1, instance=ours)
    test.gives_nothing('stepscope:rule_status{rule!="GPUError"}', END)
    test.add(run_on("unread"))
    test.gives_nothing('stepscope:rule_status{instance="unread"}', END)


@needs_prometheus
def test_memory_that_rises_and_stays_and_gpus_held_without_work(test: RuleTest) -> None:
    def memory(node: str, rise: float, before: float = 0.5) -> dict[str, Values]:
        used = [before + (rise if number >= 42 else 0.0) for number in range(SCRAPES)]
        series = gpu(node, always(90.0))
        used_name, free_name = (next(n for n in series if f"_{w}{{" in n) for w in ("USED", "FREE"))
        series[used_name] = [share * MIB for share in used]
        series[free_name] = [(1 - share) * MIB for share in used]
        return series

    test.add(memory("little", 0.049) | memory("much", 0.051))
    test.add(memory("exactly", 0.05, before=0.0))  # a difference without rounding
    test.add(gpu("held", always(0.0)) | gpu("seldom", [0.0] * 40 + [3.0] + [0.0] * (SCRAPES - 41)))
    test.add(gpu("free", always(0.0), used=0.02))
    test.add(run_on("little", "much", "exactly", "held", "seldom", "free"))
    test.firing("GPUMemoryIncrease", END, 1, instance="much", **COARSE)
    test.firing("GPUMemoryIncrease", END, 1)
    test.status("GPUMemoryIncrease", END, 0, instance="exactly")
    test.firing("IdleGPU", END, 1)
    test.firing("IdleGPU", END, 1, instance="held", run="resnet-1", **COARSE)
    test.firing("IdleGPU", END - 15, 0)  # a reading less


@needs_prometheus
def test_cores_are_judged_below_and_above_the_threshold_with_either_gpu(test: RuleTest) -> None:
    for node, busy in (("calm", 0.899), ("pinned", 0.901)):
        test.add(gpu(node, always(5.0)) | cores(node, 0.1, busy) | run_on(node))
    test.add(gpu("waiting", always(5.0)) | cores("waiting", 0.0) | run_on("waiting"))  # 50 % I/O wait
    test.firing("CPUBottleneck", END, 1)
    test.firing("CPUBottleneck", END, 1, instance="pinned", run="resnet-1", **COARSE)
    test.status("IOBottleneck", END, 0, instance="waiting")  # strictly above 50 %
    test.firing("BatchSize", END, 3)


@needs_prometheus
def test_starved_samples_count_strictly_below_and_above_their_thresholds(test: RuleTest) -> None:
    def low(scrapes: int) -> Values:
        """GPUs starve in the last scrapes."""
        return [5.0 if SCRAPES - number <= scrapes else 50.0 for number in range(SCRAPES)]

    nodes = {
        "at-17-of-35": gpu("at-17-of-35", low(17)) | cores("at-17-of-35", 1.0),
        "at-18-of-35": gpu("at-18-of-35", low(18)) | cores("at-18-of-35", 1.0),
        "core-at": gpu("core-at", always(5.0)) | cores("core-at", 0.9),
        "gpu-at": gpu("gpu-at", always(10.0)) | cores("gpu-at", 1.0),
        "gpu-below": gpu("gpu-below", always(9.9)) | cores("gpu-below", 1.0),
        "storage-less": gpu("storage-less", low(17)) | cores("storage-less", 0.0, waiting=1.0),
        "storage-more": gpu("storage-more", low(18)) | cores("storage-more", 0.0, waiting=1.0),
        "wait-above": gpu("wait-above", always(9.9)) | cores("wait-above", 0.0, waiting=0.51),
        "wait-gpu-at": gpu("wait-gpu-at", always(10.0)) | cores("wait-gpu-at", 0.0, waiting=0.51),
    }
    for node, series in nodes.items():
        test.add(series | run_on(node))
    for rule, firing in (
        ("CPUBottleneck", {"at-18-of-35", "gpu-below"}),
        ("IOBottleneck", {"storage-more", "wait-above"}),
    ):
        test.firing(rule, END, len(firing))
        for node in nodes:
            test.status(rule, END, int(node in firing), instance=node)


@needs_prometheus
def test_a_small_batch_is_below_all_three_thresholds(test: RuleTest) -> None:
    for node, percent, used, busy in (
        ("below", 69.9, 0.699, 0.699),
        ("gpu-at", 70.0, 0.699, 0.699),
        ("memory-at", 69.9, 0.7, 0.699),
        ("cores-at", 69.9, 0.699, 0.7),
    ):
        test.add(gpu(node, always(percent), used) | cores(node, busy, waiting=0.0) | run_on(node))
    test.firing("BatchSize", END, 1)
    test.firing("BatchSize", END, 1, instance="below", run="resnet-1", **COARSE)


@needs_prometheus
def test_fluctuating_is_strictly_below_one_threshold_and_above_the_other(test: RuleTest) -> None:
    def mixed(few: float, others: float, count: int) -> Values:
        """Of the 41 readings of ten minutes, 7 decide the 15th percentile, and 3 the 95th."""
        return [few if number >= SCRAPES - count else others for number in range(SCRAPES)]

    nodes = {
        "low": mixed(9.9, 95.0, 7),
        "low-at": mixed(10.0, 95.0, 7),
        "low-few": mixed(9.9, 95.0, 6),
        "high": mixed(70.1, 0.0, 3),
        "high-at": mixed(70.0, 0.0, 3),
    }
    for node, percents in nodes.items():
        test.add(gpu(node, percents) | run_on(node))
    test.firing("LowGPUUtilization", END, 2, state="pending")
    for node in ("low", "high"):
        fluctuating = {"instance": node, "trouble": "fluctuating", **COARSE}
        test.firing("LowGPUUtilization", END, 1, state="pending", **fluctuating)


@needs_prometheus
def test_nodes_gpus_and_pods_have_other_names(test: RuleTest) -> None:
    low = always(30.0)
    test.add(relabelled(gpu("small", low), "Hostname", "hostname"))
    test.add(relabelled(gpu("", low), 'instance="[^"]*",(.*),Hostname=""', r'instance="address:9400",\1'))
    shared = gpu("shared", low)
    for pod in ("a", "b"):  # time slicing: the same GPU, once per pod
        test.add(relabelled(shared, "}$", f',namespace="ml",pod="{pod}"}}'))
    moved = relabelled(gpu("moved", low), "10.0.0.1", "10.0.0.2")  # a pod of dcgm-exporter took over
    test.add(moved | gpu("moved", low))
    used = gpu("parts", low)
    for part in ("3", "4"):  # in MIG mode, only the profiling field exists
        mig = relabelled(used, "}$", f',GPU_I_PROFILE="1g.10gb",GPU_I_ID="{part}"}}')
        test.add({name: values for name, values in mig.items() if "GPU_UTIL" not in name})
        test.add(dcgm("parts", "PROF_GR_ENGINE_ACTIVE", always(0.3), f',GPU_I_ID="{part}"'))
    test.add(gpu("profiled", always(95.0)))
    labels = next(name for name in gpu("profiled", low) if "UTIL" in name).partition("{")[2]
    test.add({f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels}": always(0.3)})
    nodes = ("small", "address", "shared", "moved", "profiled")
    test.add(run_on(*nodes, "parts"))
    test.firing("LowGPUUtilization", END, len(nodes) + 2)
    for node in nodes:
        test.firing("LowGPUUtilization", END, 1, instance=node, gpu="0", run="resnet-1")
    for part in ("0:3", "0:4"):
        test.firing("LowGPUUtilization", END, 1, instance="parts", gpu=part)


@needs_prometheus
def test_a_mixed_cluster_is_judged_once_per_node_and_only_where_a_run_trains(test: RuleTest) -> None:
    for node in ("ours", "theirs", "two-runs", "no-run"):
        test.add(gpu(node, always(30.0)))
    test.add({'stepscope_gpu_up{job="stepscope",instance="ours",gpu="0"}': always(1.0)})
    test.add(run_on("ours", "theirs", "two-runs") | run_on("two-runs", run="bert-1"))
    test.firing("LowGPUUtilization", END, 2)
    test.firing("LowGPUUtilization", END, 1, instance="theirs", run="resnet-1")
    test.firing("LowGPUUtilization", END, 1, instance="two-runs", run="several")
    test.equals('count(stepscope:rule_status{rule="LowGPUUtilization"})', END, 2)


@needs_prometheus
@pytest.mark.parametrize("runs", [("resnet-1",), ("resnet-1", "bert-1")])
def test_two_nodes_of_one_short_name_are_not_judged_and_all_others_are(
    test: RuleTest, runs: tuple[str, ...]
) -> None:
    test.add(gpu("other", always(30.0)) | run_on("other"))
    for domain in ("a.example", "b.example"):
        test.add(gpu(f"twin.{domain}", always(30.0)))
        for run in runs:
            test.add(run_on(f"twin.{domain}", run=run))
    test.firing("LowGPUUtilization", END, 1)
    test.firing("LowGPUUtilization", END, 1, instance="other", run="resnet-1")
    test.equals('count(stepscope:rule_status{rule="LowGPUUtilization"})', END, 1)


def test_only_rules_that_need_the_other_source_are_added() -> None:
    def added(options: Options) -> set[str]:
        return set(re.findall(r"name: stepscope-(\w+)-other-sources", render(options)[RULES]))

    assert added(Options()) == set()
    assert added(Options(host_source=NODE_EXPORTER)) == {"BatchSize", "CPUBottleneck", "IOBottleneck"}
    everything = added(BOTH)
    assert added(Options(gpu_source=DCGM)) == everything
    assert everything - added(Options(host_source=NODE_EXPORTER)) == {
        "GPUError",
        "GPUMemoryIncrease",
        "GPUMemoryNearlyFull",
        "IdleGPU",
        "LowGPUUtilization",
        "ThermalThrottling",
    }
    assert Options().gpu_source == STEPSCOPE


def test_the_header_has_the_sources_so_that_the_files_can_be_checked() -> None:
    assert Options.from_command(BOTH.command()) == BOTH
