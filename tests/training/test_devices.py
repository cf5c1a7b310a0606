"""A training process reports its GPU once PyTorch has started CUDA, and never starts CUDA itself."""

from pathlib import Path

from tests.support.training_script import only_ledger, training

# A `torch` that counts what it is asked. CUDA is up once `torch.cuda.up` is set.
TORCH = """
import sys, types
import stepscope
asked = []
def properties(device):
    asked.append(device)
    return types.SimpleNamespace(uuid="5a11aa00-0000-0000-0000-000000000001")
cuda = types.SimpleNamespace(up=False, current_device=lambda: 3, get_device_properties=properties)
cuda.is_initialized = lambda: cuda.up
sys.modules["torch"] = types.SimpleNamespace(__version__="2.13", cuda=cuda)
def steps(number, phase="train"):
    for _ in range(number):
        with stepscope.step(phase):
            pass
"""


def devices(directory: Path, script: str) -> tuple[str, ...]:
    with training(TORCH + script, directory) as process:
        assert process.wait() == 0
        with only_ledger(directory) as reader:
            return reader.header.devices


def test_the_gpu_is_reported_after_the_first_step_and_asked_for_once(tmp_path: Path) -> None:
    script = "cuda.up = True\nsteps(50)\nsteps(3, 'eval')\nassert asked == [3], asked"
    assert devices(tmp_path, script) == ("GPU-5a11aa00-0000-0000-0000-000000000001",)


def test_cuda_is_asked_for_nothing_until_it_is_up_and_is_found_at_the_next_phase(tmp_path: Path) -> None:
    script = "steps(5)\nassert asked == []\ncuda.up = True\nsteps(1, 'eval')\nassert asked == [3], asked"
    assert devices(tmp_path, script) == ("GPU-5a11aa00-0000-0000-0000-000000000001",)


def test_a_pytorch_without_uuids_costs_nothing_but_the_answer(tmp_path: Path) -> None:
    script = (
        "import builtins\n"
        "def old(device): asked.append(device); raise AttributeError('uuid')\n"
        "cuda.up, cuda.get_device_properties = True, old\n"
        "steps(2)\nsteps(2, 'eval')\nassert asked == [3], asked"
    )
    assert devices(tmp_path, script) == ()


def test_without_pytorch_no_device_is_reported_and_pytorch_is_not_imported(tmp_path: Path) -> None:
    script = "del sys.modules['torch']\nsteps(3)\nassert 'torch' not in sys.modules"
    assert devices(tmp_path, script) == ()
