"""Reads a GPU's memory rows, links and their errors, which change slowly."""

from collections.abc import Iterator, Mapping

from stepscope.exporter.nvidia.nvml import ALL_LINKS
from stepscope.exporter.sampling.families import Family, FamilyTable

HARDWARE_SECONDS = 60.0  # between two readings

# By NVML's field (NVML_FI_DEV_*): the metric without its prefix, and its labels after the GPU. A GPU remaps
# rows (since Ampere) or retires pages (before). Errors of NVLink are sums over all links: flits and data with
# a wrong checksum, replays and recoveries up to NVLink 4, and what NVLink 5 counts.
HARDWARE: Mapping[int, tuple[str, tuple[str, ...]]] = {
    82: ("gpu_memory_temperature_celsius", ()),  # MEMORY_TEMP
    142: ("gpu_remapped_rows_total", ("corrected",)),  # REMAPPED_COR
    143: ("gpu_remapped_rows_total", ("uncorrected",)),  # REMAPPED_UNC
    144: ("gpu_row_remapping_pending", ()),  # REMAPPED_PENDING
    145: ("gpu_row_remapping_failed", ()),  # REMAPPED_FAILURE
    31: ("gpu_page_retirement_pending", ()),  # RETIRED_PENDING
    94: ("gpu_pcie_replays_total", ()),  # PCIE_REPLAY_COUNTER
    38: ("gpu_nvlink_errors_total", ("crc_flit",)),  # NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
    45: ("gpu_nvlink_errors_total", ("crc_data",)),  # NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
    52: ("gpu_nvlink_errors_total", ("replay",)),  # NVLINK_REPLAY_ERROR_COUNT_TOTAL
    59: ("gpu_nvlink_errors_total", ("recovery",)),  # NVLINK_RECOVERY_ERROR_COUNT_TOTAL
    208: ("gpu_nvlink_errors_total", ("receive",)),  # NVLINK_COUNT_RCV_ERRORS
    214: ("gpu_nvlink_errors_total", ("failed_recovery",)),  # NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS
}
OF_NVLINK_5 = {208, 214}  # by their scope, of all links
HARDWARE_FIELDS = tuple((field, ALL_LINKS if field in OF_NVLINK_5 else 0) for field in HARDWARE)


# These, and those of the PCIe link.
METRICS = """
gauge stepscope_gpu_memory_temperature_celsius{gpu}
    Temperature of the memory.
gauge stepscope_gpu_row_remapping_pending{gpu}
    1: a bad row of memory is remapped at the next reset of the GPU.
gauge stepscope_gpu_row_remapping_failed{gpu}
    1: a bad row of memory could not be remapped.
gauge stepscope_gpu_page_retirement_pending{gpu}
    1: a bad page of memory is retired at the next reset of the GPU.
gauge stepscope_gpu_pcie_link_width{gpu}
    Lanes of the PCIe link now.
gauge stepscope_gpu_pcie_link_max_width{gpu}
    Most lanes that the GPU and its slot allow.
gauge stepscope_gpu_pcie_link_generation{gpu}
    Generation of the PCIe link now; an idle GPU lowers it to save power.
gauge stepscope_gpu_pcie_link_max_generation{gpu}
    Highest generation that the GPU and its slot allow.
counter stepscope_gpu_remapped_rows_total{gpu,severity}
    Rows of memory remapped in the GPU's life, by the severity of their errors.
counter stepscope_gpu_pcie_replays_total{gpu}
    Packets that PCIe had to send again.
counter stepscope_gpu_nvlink_errors_total{gpu,kind}
    Errors of all NVLinks since the driver was loaded, by kind.
"""


def families() -> list[Family]:
    """Returns the families that these values and those of the PCIe link are published in."""
    return list(FamilyTable(METRICS).values())


def hardware_values(gpu: str, answers: Mapping[int, float]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Returns the values in the answers of NVML to HARDWARE_FIELDS."""
    for field, value in answers.items():
        name, labels = HARDWARE[field]
        yield name, (gpu, *labels), value
