"""A fake libnvidia-ml.so.1 (tests/fake_nvml/fake_nvml.c), compiled in the test run and driven by tests."""

import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "fake_nvml" / "fake_nvml.c"
GPU_IS_LOST = 15  # NVML_ERROR_GPU_IS_LOST
NO_DRIVER = 9  # NVML_ERROR_DRIVER_NOT_LOADED

_FUNCTIONS, _NAME, _GPUS = 64, 48, 16  # as in the C source
_COUNTED = struct.Struct(f"{_NAME}s{_GPUS + 1}Q")
_UNSIGNED_INT, _UNSIGNED_LONG_LONG = 1, 3  # NVML's value types
_UNSIGNED_INT_FIELDS = {186, 190}  # the power readings
_TEXTS = {"uuid", "name", "pci"}


@cache
def _compiled(old_driver: bool) -> bytes:
    """The library's bytes; skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc or gcc) on the PATH to build the fake libnvidia-ml.so with")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "fake.so")
        options = ["-DOLD_DRIVER"] if old_driver else []
        command = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", *options]
        subprocess.run([*command, "-o", str(library), str(SOURCE), "-ldl"], check=True)
        return library.read_bytes()


class FakeNvml:
    """A library in `directory` with `gpus` GPUs (at most 16) that report fixed, different values.

    What GPU number g reports at first, and what `set` can change: see `_start_values`. Each method
    takes effect at the library's next call, also in another process. `old_driver`: a library that
    lacks what drivers before R510 lack.
    """

    def __init__(self, directory: Path, gpus: int = 8, old_driver: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.library = directory / "libnvidia-ml.so.1"
        self.library.write_bytes(_compiled(old_driver))
        self.driver = "470.57.02" if old_driver else "580.95.05"
        self.gpus = gpus
        self._calls = directory / "calls"
        self._calls.write_bytes(bytes(_COUNTED.size * _FUNCTIONS))
        self._changed = 0
        self._init_error = 0
        self._values: list[dict[str, int | str]] = [_start_values(gpu) for gpu in range(gpus)]
        self._fields = [_start_fields(gpu, old_driver) for gpu in range(gpus)]
        self._errors: list[dict[str, int]] = [{} for _ in range(gpus)]
        self._states: list[dict[str, int]] = [{} for _ in range(gpus)]
        self._pids: list[tuple[int, ...]] = [() for _ in range(gpus)]
        self._migs: list[dict[int, tuple[object, ...]]] = [{} for _ in range(gpus)]
        self._hangs: list[tuple[str, int]] = []
        self._xids: list[tuple[int, int]] = []
        self._write()

    def environment(self) -> dict[str, str]:
        """What a subprocess needs in its environment to find this library as the machine's own."""
        return {"LD_LIBRARY_PATH": str(self.directory)}

    def set(self, gpu: int, **values: int | str) -> None:
        """Changes values of one GPU, in NVML's units (percent, bytes, MHz, mW, KB/s)."""
        unknown = values.keys() - self._values[gpu].keys()
        assert not unknown, f"the fake NVML knows no {unknown}"
        self._values[gpu].update(values)
        self._write()

    def set_fields(self, gpu: int, values: Mapping[int, int | None]) -> None:
        """Changes what nvmlDeviceGetFieldValues says of fields; None: not supported."""
        self._fields[gpu].update(values)
        self._write()

    def fail(self, gpu: int, function: str, code: int) -> None:
        """From now on the function answers this NVML error for this GPU; 0: it works again."""
        self._errors[gpu][function] = code
        self._write()

    def lose(self, gpu: int, code: int = GPU_IS_LOST, until_init: bool = False) -> None:
        """Every call for this GPU fails; with `until_init` also after `restore`, until NVML starts anew."""
        self._states[gpu] = {"lost": code, "stays_lost": int(until_init)}
        self._write()

    def hide(self, gpu: int) -> None:
        """The GPU is lost, and an NVML that starts anew does not count it: those behind it move up."""
        self._states[gpu] = {"absent": 1}
        self._write()

    def restore(self, gpu: int) -> None:
        """A lost or hidden GPU is there again."""
        self._states[gpu] = {}
        self._write()

    def hang(self, function: str, gpu: int | None = None) -> None:
        """Calls of the function (for one GPU, or any) do not return until `release`."""
        self._hangs.append((function, -1 if gpu is None else gpu))
        self._write()

    def release(self) -> None:
        """Lets every hanging call return."""
        self._hangs.clear()
        self._write()

    def post_xid(self, gpu: int, xid: int) -> None:
        """The driver reports an XID error of this GPU."""
        self._xids.append((gpu, xid))
        self._write()

    def set_driver(self, version: str) -> None:
        """The driver's version: NVML reads it when it starts."""
        self.driver = version
        self._write()

    def run_processes(self, gpu: int, *pids: int) -> None:
        """These compute processes are on the GPU."""
        self._pids[gpu] = pids
        self._write()

    def divide(self, gpu: int, **pids: tuple[int, ...]) -> None:
        """Divides the GPU into MIG devices: mig_0=(PID, ...) and so on; none: it is whole again."""
        self._values[gpu]["mig_mode"] = int(bool(pids))
        self._migs[gpu] = {
            int(name.removeprefix("mig_")): (f"MIG-{gpu:08d}-{name[-1]}", 10**10, 10**9, *processes)
            for name, processes in pids.items()
        }
        self._write()

    def unload_driver(self) -> None:
        """nvmlInit says that the driver is not loaded, until `load_driver`."""
        self._init_error = NO_DRIVER
        self._write()

    def load_driver(self) -> None:
        """nvmlInit works again."""
        self._init_error = 0
        self._write()

    def calls(self) -> dict[tuple[str, int | None], int]:
        """How often each function was called since the start, for each GPU (None: a call without a GPU)."""
        counted = {}
        for name, *numbers in _COUNTED.iter_unpack(self._calls.read_bytes()):
            for gpu, number in enumerate(numbers):
                if number:
                    counted[name.rstrip(b"\0").decode(), gpu if gpu < _GPUS else None] = number
        return counted

    def _write(self) -> None:
        lines = [f"gpus {self.gpus}", f"driver {self.driver}", f"init_error {self._init_error}"]
        for gpu in range(self.gpus):
            for name, value in self._values[gpu].items():
                lines.append(f"{gpu} {'text' if name in _TEXTS else 'value'} {name} {value}")
            for field, number in self._fields[gpu].items():
                kind = _UNSIGNED_INT if field in _UNSIGNED_INT_FIELDS else _UNSIGNED_LONG_LONG
                if number is not None:
                    lines.append(f"{gpu} field {field} {kind} 0 {number}")
            lines += [f"{gpu} error {name} {code}" for name, code in self._errors[gpu].items() if code]
            lines += [f"{gpu} {state} {value}" for state, value in self._states[gpu].items()]
            lines += [f"{gpu} mig {n} {' '.join(map(str, mig))}" for n, mig in self._migs[gpu].items()]
            lines.append(f"{gpu} pids {' '.join(map(str, self._pids[gpu]))}")
        lines += [f"hang {function} {gpu}" for function, gpu in self._hangs]
        lines += [f"xid {number} {gpu} {xid}" for number, (gpu, xid) in enumerate(self._xids, start=1)]
        new = self.directory / "control.new"
        new.write_text("\n".join(lines) + "\n")
        # The library goes by the time of change, which the kernel keeps only to some milliseconds.
        self._changed = max(self._changed + 1, time.time_ns())
        os.utime(new, ns=(self._changed, self._changed))
        os.replace(new, self.directory / "control")


def _start_values(gpu: int) -> dict[str, int | str]:
    """What GPU number `gpu` says at first: an H100 at work, each a little different."""
    return {
        "uuid": f"GPU-00000000-0000-0000-0000-{gpu:012d}",
        "name": "NVIDIA H100 80GB HBM3",
        "pci": f"00000000:{16 + gpu:02X}:00.0",
        "utilization": 90 + gpu,
        "memory_utilization": 40 + gpu,
        "memory_total": 85_899_345_920,
        "memory_reserved": 600_000_000,
        "memory_used": 40_000_000_000 + gpu,
        "temperature": 50 + gpu,
        "power_milliwatts": 500_000 + gpu,
        "power_limit_milliwatts": 700_000,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "pcie_tx_kbps": 1000,
        "pcie_rx_kbps": 2000,
        "clock_reasons": 0,
        "gpm": 1,
        "sm_active_percent": 80 + gpu,
        "tensor_active_percent": 30 + gpu,
        "dram_active_percent": 20 + gpu,
        "mig_mode": 0,
        "pcie_width": 16,
        "pcie_max_width": 16,
        "pcie_generation": 5,
        "pcie_max_generation": 5,
    }


def _start_fields(gpu: int, old_driver: bool) -> dict[int, int | None]:
    """NVML field id -> value, in NVML's units."""
    fields: dict[int, int | None] = {
        3: gpu,  # corrected memory errors since the driver was loaded
        4: 0,  # uncorrected ones
        74: 1_000_000_000,  # ns held down by: power cap, 75: heat, 76: sync boost, 77: board, 79: reliability
        75: 0,
        76: 0,
        77: 0,
        79: 0,
        83: 5_000_000 + gpu,  # mJ
    }
    if not old_driver:
        fields |= {
            82: 60 + gpu,  # degrees Celsius of the memory
            142: 0,  # rows remapped after corrected errors, 143: uncorrected; 144: pending, 145: failed
            143: 0,
            144: 0,
            145: 0,
            94: 0,  # PCIe replays
            38: 0,  # errors of all NVLinks, 38: CRC of flits, 45: of data, 52: replays, 59: recoveries
            45: 0,
            52: 0,
            59: 0,
            138: 2048,  # KiB sent over NVLink, 139: received
            139: 4096,
            186: 612_000 + gpu,  # mW now
            190: 700_000,  # mW allowed
            197: 7_000_000,  # bytes sent over PCIe, 198: received
            198: 9_000_000,
            269: 2_000_000_000,  # ns held down by heat (software), 270: heat (hardware), 271: power brake
            270: 0,
            271: 0,
        }
    return fields
