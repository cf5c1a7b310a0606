"""Profile windows of unmodified PyTorch scripts: what they record, and that training never notices."""

import gzip
import json
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.cli import main
from stepscope.exporter.ledgers.reader import LedgerTotals
from stepscope.runs.traces.source import KinetoTraces
from stepscope.training.window_files import MODULE

from tests.support.pytorch import needs_torch
from tests.support.torch_script import Trained, train

pytestmark = needs_torch

MODEL = """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8)
def batch(x, y):
    loss = loss_of(model(x), y)
    loss.backward()
def step(x, y):
    optimizer.zero_grad()
    batch(x, y)
    optimizer.step()
def train(epochs=1):
    for epoch in range(epochs):
        for x, y in loader:
            step(x, y)
def said():
    print([x.tolist() for x in model.parameters()])
"""


# What is trained in one process, part by part: under the hooks, each part is a run with windows of its own.
PART = """
import stepscope
print("part {name}")
os.environ["STEPSCOPE_PROFILE_DIR"] = {folder!r}
if {plan!r}: os.environ["STEPSCOPE_PROFILE"] = {plan!r}
stepscope.start(run={name!r})
torch.manual_seed(0)
{script}
stepscope.finish()
"""


@dataclass(frozen=True)
class Parts:
    """The parts that a process has trained."""

    folder: Path
    trained: Trained

    def output(self, name: str) -> str:
        """Returns what the part has printed."""
        (text,) = re.findall(
            rf"^part {name}\n(.*?)(?=^part |\Z)", self.trained.output, re.DOTALL | re.MULTILINE
        )
        return str(text)

    def windows(self, name: str) -> list[tuple[int, int, str, str]]:
        return summary(self.folder / name)

    def traces(self, name: str) -> Path:
        """Returns the folder of the part's windows."""
        return self.folder / name / "profiles"

    def totals(self, name: str) -> LedgerTotals:
        (rank,) = self.trained.of(name)
        return rank.totals


def in_parts(
    folder: Path,
    parts: Mapping[str, tuple[str, str]],
    status: int = 0,
    disks: Mapping[str, Path] | None = None,
    **more: Any,
) -> Parts:
    """Trains parts: their names, their windows and scripts. Returns when the process has ended like this.

    `disks` have the windows of parts that are not in `folder`.
    """
    places = {name: folder / name for name in parts} | dict(disks or {})
    scripts = [
        PART.format(name=name, plan=plan, folder=str(places[name] / "profiles"), script=MODEL + script)
        for name, (plan, script) in parts.items()
    ]
    return Parts(folder, train(*scripts, folder=folder, status=status, **more))


@pytest.fixture(scope="module")
def full_disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """File systems with room for nothing, and for the list of windows but for no trace.

    There are none if this user cannot mount any.
    """
    folder = tmp_path_factory.mktemp("disks")
    disks = {name: folder / name for name in ("full", "small")}
    with ExitStack() as mounted:
        for disk in disks.values():
            disk.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
            if subprocess.run(mount, capture_output=True, check=False).returncode:
                yield {}
                return
            mounted.callback(subprocess.run, ["umount", str(disk)], check=True)
        with suppress(OSError):
            (disks["full"] / "other").write_bytes(bytes(1 << 20))
        yield disks


def test_a_window_on_a_full_disk_costs_only_itself(
    bare: Parts, windows: Parts, full_disks: dict[str, Path]
) -> None:
    if not full_disks:
        pytest.skip("this user cannot mount a file system")
    # PyTorch's own profiler may say on stderr what it could not write.
    said = [line for line in windows.trained.errors.splitlines() if line.startswith("stepscope")]
    (line,) = [line for line in said if "No space left on device" in line]
    assert line == said[0], "those of the disks are the first windows"
    assert line.startswith("stepscope: the profile window at step 2 failed: ")
    for name, disk in full_disks.items():
        assert windows.output(name) == bare.output("alone")
        assert windows.totals(name).steps == {"train": 12}
        assert not list(disk.rglob("*.gz")), "half a trace is none"
        assert not list(disk.rglob("*unfinished*tmp")), "it would keep the disk full"
    assert [each["state"] for each in listed(full_disks["small"])] == ["failed", "failed"]


def listed(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("profiles/*.windows.json"))
    return [window for path in paths for window in json.loads(path.read_text())["windows"]]


def summary(folder: Path) -> list[tuple[int, int, str, str]]:
    return [(each["first"], each["last"], each["state"], each["reason"]) for each in listed(folder)]


def events(path: Path) -> list[dict[str, Any]]:
    trace = json.loads(gzip.decompress(path.read_bytes()))
    return [event for event in trace["traceEvents"] if event.get("ph") == "X"]


def self_times(found: list[dict[str, Any]]) -> dict[str, tuple[int, float]]:
    """Returns calls and microseconds of each operator, without those inside it."""
    sums: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    operators = [event for event in found if event["cat"] == "cpu_op"]
    for outer in operators:
        inside = [
            each
            for each in operators
            if each is not outer
            and each["tid"] == outer["tid"]
            and outer["ts"] <= each["ts"]
            and each["ts"] + each["dur"] <= outer["ts"] + outer["dur"]
        ]
        direct = [
            each
            for each in inside
            if not any(
                other is not each
                and other["ts"] <= each["ts"]
                and each["ts"] + each["dur"] <= other["ts"] + other["dur"]
                for other in inside
            )
        ]
        calls, seconds = sums[outer["name"]]
        sums[outer["name"]] = calls + 1, seconds + outer["dur"] - sum(each["dur"] for each in direct)
    return dict(sums)


TRAINS = """
train()
said()
"""
BY_HAND = """
profile = torch.profiler.profile()
for number, (x, y) in enumerate(loader):
    step(x, y)
    if number == 2: profile.start()
    if number == 5: profile.stop()
print({each.key: each.count for each in profile.key_averages()})
"""
LINES = """
def slow(x):
    for _ in range(20): x = x @ x / 256
    return x
large = torch.ones(256, 256)
for x, y in loader:
    step(x, y)
    slow(large)
"""
MEMORY = """
def train():
    for x, y in loader:
        large = torch.zeros(1 << 20)  # 4 MiB
        step(x, y)
"""
FLOPS = """
from torch.utils.flop_counter import FlopCounterMode
class Convolves(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(1, 6, 3, stride=2, padding=1, dilation=2)
        self.outer = nn.ConvTranspose2d(6, 2, 3)
    def forward(self, x):
        return self.outer(self.inner(x.view(-1, 1, 4, 4))).flatten(1)
model = nn.Sequential(nn.Linear(16, 16), Convolves(), nn.LazyLinear(4))
model(torch.zeros(1, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
stepscope.gauge("peak_flops", 1e12)
train()
said()
with FlopCounterMode(display=False) as counts: step(*next(iter(loader)))
print(counts.get_total_flops())
"""
EVALUATION = """
for epoch in range(2):
    for number, (x, y) in enumerate(loader):
        batch(x, y)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        for x, y in loader: model(x)
"""


OWN_PROFILER = """
done = []
schedule = torch.profiler.schedule(wait=2, warmup=2, active=2, repeat=1)
ready = lambda profile: done.append(len(profile.events()))
with torch.profiler.profile(schedule=schedule, on_trace_ready=ready) as profile:
    for x, y in loader:
        step(x, y)
        profile.step()
train()
said()
print(len(done) == 1 and done[0] > 20)
"""
IN_FOLDER = """
def together(items):
    time.sleep(0.02)  # less than 10 ms would be too little to judge
    return (torch.stack(items),)
model = nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.randn(48, 64), batch_size=8, collate_fn=together)
schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
folder = os.path.join(os.path.dirname(os.environ["STEPSCOPE_PROFILE_DIR"]), "traces")
ready = torch.profiler.tensorboard_trace_handler(folder, use_gzip=True)
activities = [torch.profiler.ProfilerActivity.CPU]
with torch.profiler.profile(activities=activities, schedule=schedule, on_trace_ready=ready) as profile:
    for (batch,) in loader:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        profile.step()
"""
NO_PLAN = """
train()
print("stepscope.training.windows" in sys.modules, torch.autograd._profiler_enabled())
"""
FORKS = """
train()
for x, y in DataLoader(data, batch_size=8, num_workers=1): step(x, y)
sys.stdout.flush()
child = os.fork()
if not child:
    train()
    print("child", flush=True)
    sys.exit(7)  # with the functions of atexit
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
train()
"""
COMPILES = """
compiled = torch.compile(model, backend="eager")
for number, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss_of((compiled if number > 4 else model)(x), y).backward()
    optimizer.step()
said()
from torch._dynamo.utils import counters
print(dict(counters["stats"]), dict(counters["recompiles"]), dict(counters["graph_break"]))
"""
PUT_BACK = """
before = torch.nn.Module.__call__
class Keeps(torch.nn.Linear):
    def forward(self, x):
        seen.add(torch.nn.Module.__call__ is before)
        return super().forward(x)
seen = set()
keeps = Keeps(16, 16)
def batch(x, y):
    loss_of(model(keeps(x)), y).backward()
train()
print(sorted(seen), torch.nn.Module.__call__ is before)
from stepscope.training.frameworks.torch_hooks.module_calls import ModuleCalls
noted = ModuleCalls()
noted.start()
noted.left, wrapped = 2, torch.nn.Module.__call__
for _ in range(3): keeps(torch.ones(16))
noted.stop()
wrapped(keeps, torch.ones(16))
print(len(noted.calls), noted.too_many, noted.events())
"""
INTERRUPTED = """
from stepscope.training import window_lines
from stepscope.training.session import session
from stepscope.training.windows import Windows
before, look, at, lines = torch.nn.Module.__call__, Windows.look, 1, 0
def trace(frame, event, _):
    global at, lines
    if "json" in frame.f_code.co_filename: return None  # its lines grow with the list of windows
    lines += event == "line"
    if lines == at:
        at += 71
        raise KeyboardInterrupt
    return trace
def interrupted(*arguments):
    global lines
    lines = 0
    sys.settrace(trace)
    try: return look(*arguments)
    finally: sys.settrace(None)
Windows.look = interrupted
left_on = set()
for epoch in range(6):
    for x, y in loader:
        try: step(x, y)
        except KeyboardInterrupt: Windows.look = look
        else: continue
        step(x, y)
        while session.windows._open is not None: step(x, y)
        left_on |= {torch.autograd._profiler_enabled(), torch.nn.Module.__call__ is not before}
        left_on.add(bool(window_lines._sampling))
        Windows.look = interrupted
Windows.look = look
import gc
gc.collect()  # what interrupts keep alive, such as the optimizer
print(at > 500, left_on)
"""
IDLE = """
from stepscope.training.session import session
train()
open_before = torch.autograd._profiler_enabled()
session.windows._open.patience = 0.0
model(torch.ones(1, 16))
print(open_before, torch.autograd._profiler_enabled())
train()
"""
FAILS = """
for number, (x, y) in enumerate(loader):
    step(x, y)
    if number == 6: raise RuntimeError("of the script")
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Trained without hooks."""
    parts = {"alone": ("", TRAINS), "by hand": ("", BY_HAND), "own profiler": ("", OWN_PROFILER)}
    parts |= {"compiled": ("", COMPILES), "flops": ("", FLOPS), "in a folder": ("", IN_FOLDER)}
    return in_parts(tmp_path_factory.mktemp("bare"), parts, STEPSCOPE="off")


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory, full_disks: dict[str, Path]) -> Parts:
    parts = {
        "no plan": ("", NO_PLAN),  # before any other has loaded what makes windows
        **dict.fromkeys(full_disks, ("2:4 8:9", TRAINS)),
        "operators": ("3:5 6:8 12:13", TRAINS),
        "compiled": ("4:6 9:10", COMPILES),
        "put back": ("3:5", PUT_BACK),
        "lines": ("2:11", LINES),
        "memory": ("3:5,memory 7:8", MEMORY + TRAINS),
        "shapes": ("3:5,shapes 7:8", TRAINS),
        "flops": ("2:3 6:7", FLOPS),
        "python": ("3:5,python 7:8", TRAINS),
        "idle": ("12:20", IDLE),
        "interrupted": ("every=4,steps=1", INTERRUPTED),
        "evaluation": ("2:9", EVALUATION),
        "own profiler": ("1:9 5:5 15:16", OWN_PROFILER),
        "heap": ("2:4 8:9", LARGE_HEAP),
        "scopes": ("every=3,steps=1", SCOPES),
        "fork": ("9:28", FORKS),
        "exception": ("2:90", FAILS),  # ends the process
    }
    return in_parts(tmp_path_factory.mktemp("windows"), parts, status=1, disks=full_disks)


def test_a_window_has_the_operators_of_its_steps_and_changes_no_parameter(
    bare: Parts, windows: Parts
) -> None:
    assert windows.output("operators") == bare.output("alone") != ""
    assert not list(bare.folder.glob("*/profiles"))
    assert [each[:3] for each in windows.windows("operators")] == [
        (3, 5, "written"),
        (7, 8, "written"),  # a step later: a new profiler at once would write into what the other has freed
        (12, 11, "failed"),  # the run ended at its beginning
    ]
    (trace,) = windows.traces("operators").glob("rank-0.steps-3-5.*.gz")
    counted = Counter(event["name"] for event in events(trace) if event["cat"] == "cpu_op")
    expected = eval(bare.output("by hand"))  # a dictionary that the script printed
    names = [name for name in expected if name.startswith("aten::")]
    assert len(names) > 10
    assert {name: counted[name] for name in names} == {name: expected[name] for name in names}
    source = KinetoTraces(trace)
    (steps,) = source.read()
    assert list(steps.numbers) == [3, 4, 5]  # type: ignore[union-attr]
    own = self_times(events(trace))
    read = {each.operator: (each.calls, 1e6 * (each.self_seconds or 0)) for each in source.facts.operators}
    largest = sorted(own, key=lambda name: -own[name][1])[:10]
    for name in largest:
        assert read[name][0] == own[name][0]
        assert read[name][1] == pytest.approx(own[name][1], rel=0.05, abs=1.0)


def test_a_window_has_the_calls_of_modules_as_the_model_names_them(windows: Parts) -> None:
    (trace,) = windows.traces("operators").glob("rank-0.steps-3-5.*.gz")
    modules = [event for event in events(trace) if event["cat"] == MODULE]
    linear = [name for name in {event["name"] for event in modules} if name.endswith("(Linear)")]
    assert linear
    assert Counter(event["name"] for event in modules if event["name"] in ("Net", *linear)) == dict.fromkeys(
        ("Net", *linear), 3
    )
    source = KinetoTraces(trace)
    (steps,) = source.read()
    found = {(each.part, each.module): each for each in source.facts.passes}
    assert {part for part, _ in found} == {"forward", "backward", "optimizer"}
    assert all(found["forward", name].calls == 3 for name in ("Net", *linear))
    assert all(found["backward", name].seconds > 0 for name in linear)
    assert sum(each.seconds for each in found.values()) <= sum(steps.durations)  # type: ignore[union-attr]


def test_outside_of_windows_and_behind_the_limit_modules_are_called_as_before(windows: Parts) -> None:
    assert windows.output("put back").split("\n")[:2] == ["[False, True] True", "2 True []"]


def test_what_is_compiled_in_a_window_and_before_it_is_as_without_one(bare: Parts, windows: Parts) -> None:
    assert windows.output("compiled") == bare.output("compiled") != ""
    assert [each[:3] for each in windows.windows("compiled")] == [(4, 6, "written"), (9, 10, "written")]


def test_the_line_that_calls_an_operator_is_known_without_with_stack(windows: Parts) -> None:
    assert [each[:3] for each in windows.windows("lines")] == [(2, 11, "written")]
    (trace,) = windows.traces("lines").glob("*.gz")
    source = KinetoTraces(trace)
    assert list(source.read())
    (place,) = [each.place for each in source.facts.operators if each.operator == "aten::mm"]
    script = (windows.folder / "train.py").read_text().splitlines()
    line = next(number for number, text in enumerate(script, 1) if "x @ x" in text)
    assert place.endswith(f"train.py:{line}"), windows.trained.errors


def test_a_window_of_memory_has_what_operators_allocate_and_changes_no_parameter(
    bare: Parts, windows: Parts
) -> None:
    assert windows.output("memory") == bare.output("alone")
    assert [each[:3] for each in windows.windows("memory")] == [(3, 5, "written"), (7, 8, "written")]
    source = KinetoTraces(windows.traces("memory"))
    assert len(list(source.read())) == 1
    (memory,) = source.facts.memory
    assert (memory.device, memory.steps) == ("cpu", 3)  # those of the second window are not of it
    largest = memory.operators[0]
    assert (largest.operator, largest.allocations, largest.allocated) == ("aten::zeros", 3, 3 << 22)
    assert 1 << 22 <= memory.most < 3 << 22  # each one is freed when the next is there, at the latest


def test_a_window_of_shapes_has_those_of_the_most_expensive_calls_and_changes_no_parameter(
    bare: Parts, windows: Parts
) -> None:
    assert windows.output("shapes") == bare.output("alone")
    assert [each[:3] for each in windows.windows("shapes")] == [(3, 5, "written"), (7, 8, "written")]
    (trace,) = windows.traces("shapes").glob("rank-0.steps-3-5.*.gz")
    spent = Counter[str]()
    for each in (event for event in events(trace) if event["name"] == "aten::addmm"):
        dimensions = [one for one in each["args"]["Input Dims"] if one]
        spent[", ".join("×".join(map(str, one)) for one in dimensions)] += each["dur"]
    source, without = (KinetoTraces(windows.traces(name)) for name in ("shapes", "operators"))
    assert [len(list(each.read())) for each in (source, without)] == [1, 1]
    found = {each.operator: each.shapes for each in source.facts.operators}
    assert found["aten::addmm"] in {shapes for shapes, _ in spent.most_common(2)}  # self times are near
    assert "×" in found["aten::addmm"]
    assert {each.shapes for each in without.facts.operators} == {""}


def test_the_first_window_counts_flops_if_the_script_gives_the_peak_and_changes_no_parameter(
    bare: Parts, windows: Parts
) -> None:
    assert windows.output("flops") == bare.output("flops")
    first, second = (
        KinetoTraces(next(windows.traces("flops").glob(f"rank-0.steps-{steps}.*.gz")))
        for steps in ("2-3", "6-7")
    )
    assert [len(list(each.read())) for each in (first, second)] == [1, 1]
    (rank,), (later,) = first.facts.ranks, second.facts.ranks
    assert rank.flops_per_step == int(windows.output("flops").split()[-1])
    assert later.flops_per_step is None


def test_a_window_of_python_functions_changes_no_parameter(bare: Parts, windows: Parts) -> None:
    assert windows.output("python") == bare.output("alone")
    assert [each[:3] for each in windows.windows("python")] == [(3, 5, "written"), (7, 8, "written")]
    (path,) = windows.traces("python").glob("rank-0.steps-3-5.*.python.json.gz")
    found = {name: calls for name, calls, *_ in json.loads(gzip.decompress(path.read_bytes()))["functions"]}
    calls = {name.partition(",")[0]: count for name, count in found.items() if "train.py:" in name}
    assert calls["batch"] == 3
    assert calls["forward"] == 3
    assert next(count for name, count in found.items() if "_nn.linear" in name) == 2 * 3


def test_a_window_that_begins_after_the_last_step_ends_at_the_next_call_of_a_module(windows: Parts) -> None:
    assert windows.output("idle") == "True False\n"
    assert [each[:3] for each in windows.windows("idle")] == [(12, 11, "failed")]


def test_an_interrupt_at_any_line_leaves_no_profiler_and_no_hook_of_a_window(windows: Parts) -> None:
    assert windows.output("interrupted") == "True {False}\n"


def test_steps_of_accumulated_gradients_count_once_and_an_evaluation_ends_the_window(windows: Parts) -> None:
    assert windows.totals("evaluation").steps == {"train": 12, "eval": 24}
    assert windows.windows("evaluation") == [(2, 5, "written", "an evaluation began")]
    (trace,) = windows.traces("evaluation").glob("*.gz")
    backward = [event for event in events(trace) if event["name"].startswith("autograd::engine::evaluate")]
    steps = [event for event in events(trace) if event["name"].startswith("ProfilerStep#")]
    assert len(steps) == 4
    assert len([each for each in events(trace) if each["name"] == "Optimizer.step#SGD.step"]) == 4
    assert len([each for each in backward if "NllLoss" in each["name"]]) == 8


def test_the_scripts_own_profiler_goes_first(bare: Parts, windows: Parts) -> None:
    assert windows.output("own profiler") == bare.output("own profiler")
    assert bare.output("own profiler").endswith("True\n")
    assert [each[2:] for each in windows.windows("own profiler")] == [
        ("written", "the script started its own profiler"),
        ("skipped", "the script's own profiler is active"),
        ("written", ""),
    ]
    assert "the script's own profiler is active" in windows.trained.errors


def test_a_trace_of_the_scripts_own_profiler_is_read(
    bare: Parts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = bare.folder / "in a folder" / "traces"
    source = KinetoTraces(traces)
    (steps,) = source.read()
    assert list(steps.numbers) == [2, 3, 4]  # type: ignore[union-attr]
    for step in source.summaries[0].steps:
        assert sum(step.slices.values()) == pytest.approx(step.seconds, abs=1e-9)
        assert step.slices["kernel"] == 0
        assert 0 < step.slices["data loading"] <= step.components["data_wait"]
        assert 0 < sum(step.components.values()) < step.seconds
    operators = {one.operator: one for one in source.facts.operators}
    assert operators["aten::linear"].calls == 3
    assert 0 < (operators["aten::linear"].self_seconds or 0) < operators["aten::linear"].seconds
    assert [one.calls for one in source.facts.activities] == [3]
    assert main(["report", str(traces), "--out", str(tmp_path / "out")]) == 0
    assert re.match("(✓ Healthy|▲ found): ", capsys.readouterr().err), "a verdict and no warning"
    assert (tmp_path / "out" / "report.html").exists()


def test_an_exception_in_a_window_leaves_its_steps(windows: Parts) -> None:
    assert "RuntimeError: of the script" in windows.trained.errors
    assert windows.windows("exception") == [(2, 6, "written", "the run ended")]
    (trace,) = windows.traces("exception").glob("*.gz")
    assert len(events(trace)) > 50


def test_a_fork_in_a_window_leaves_it_to_the_parent(windows: Parts) -> None:
    assert windows.output("fork") == "child\n7\n"
    assert windows.windows("fork") == [(9, 28, "written", "")]
    assert len(list(windows.traces("fork").iterdir())) == 2


SCOPES = """
from stepscope.training.session import session
def begin():  # thousands: a few writes into freed memory may go unseen
    entered = [torch.profiler.record_function("scope") for _ in range(3000)]
    for scope in entered: scope.__enter__()
    return entered
def end(entered):
    for scope in reversed(entered): scope.__exit__(None, None, None)
def train(open):
    while (session.windows is not None and session.windows._open is not None) != open:
        step(*data[:8])
def own():
    profile = torch.profiler.profile()
    profile.start()
    return profile
step(*data[:8])
train(True)
entered = begin()
train(False)
train(True)
end(entered)
print("ended in the next window")
entered = begin()
profile = own()
end(entered)
print("ended in the profiler of the script")
entered = begin()
profile.stop()
print(sum(each.name == "scope" for each in profile.events()))
train(True)
end(entered)
print("ended in a window after it")
"""


def test_scopes_that_outlast_their_profiler_end_in_no_memory_that_it_has_freed(windows: Parts) -> None:
    assert windows.output("scopes").splitlines() == [
        "ended in the next window",
        "ended in the profiler of the script",
        "3000",
        "ended in a window after it",
    ]


LARGE_HEAP = """
import gc
get_objects = gc.get_objects
gc.get_objects = None  # a loop over millions of them takes seconds
train()
gc.get_objects = get_objects
"""


def test_a_window_looks_at_no_objects_of_the_script(windows: Parts) -> None:
    assert windows.windows("heap") == [(2, 4, "written", ""), (8, 9, "written", "")]


RANKS = """
model = DDP(model)
for number, (x, y) in enumerate(loader):
    step(x, y)
    if number == 8 and rank == 0: os.kill(os.getpid(), 9)
    if number == 8: time.sleep(60)
"""


def test_a_rank_that_is_killed_in_its_window_costs_only_its_own_trace(tmp_path: Path) -> None:
    profile = {"STEPSCOPE_PROFILE": "2:4 6:30,ranks=0", "STEPSCOPE_PROFILE_DIR": str(tmp_path / "profiles")}
    train(MODEL, RANKS, folder=tmp_path, ranks=2, status=1, **profile)
    lists = sorted(path.name.partition(".")[0] for path in tmp_path.glob("profiles/*.windows.json"))
    assert lists == ["rank-0", "rank-1"]
    traces = sorted(tmp_path.glob("profiles/*.gz"))
    assert [path.name[: len("rank-0.steps-2-4")] for path in traces] == [
        "rank-0.steps-2-4",
        "rank-1.steps-2-4",
    ]
    states = {(each["first"], each["state"]) for each in listed(tmp_path)}
    assert states == {(2, "written"), (6, "open")}
    source = KinetoTraces(tmp_path / "profiles")
    assert {steps.rank: len(steps) for steps in source.read()} == {0: 3, 1: 3}  # type: ignore[union-attr]
    assert source.facts.gaps == ()
    assert source.facts.collectives


def test_without_a_plan_nothing_is_written_and_nothing_replaced_in_training(windows: Parts) -> None:
    assert windows.output("no plan") == "False False\n"
    assert not (windows.folder / "no plan").exists()
