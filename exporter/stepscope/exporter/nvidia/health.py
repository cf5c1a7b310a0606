"""Reads a GPU's memory rows, links and their errors, which change slowly."""

from collections.abc import Iterator, Mapping

from stepscope.exporter.nvidia.nvml import ALL_LINKS
from stepscope.exporter.sampling.families import Family, Kind

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


# The help of each of these, and of those of the PCIe link, and its labels after the GPU.
FAMILIES = {
    "memory_temperature_celsius": ("Temperature of the memory.",),
    "row_remapping_pending": ("1: a bad row of memory is remapped at the next reset of the GPU.",),
    "row_remapping_failed": ("1: a bad row of memory could not be remapped.",),
    "page_retirement_pending": ("1: a bad page of memory is retired at the next reset of the GPU.",),
    "pcie_link_width": ("Lanes of the PCIe link now.",),
    "pcie_link_max_width": ("Most lanes that the GPU and its slot allow.",),
    "pcie_link_generation": ("Generation of the PCIe link now; an idle GPU lowers it to save power.",),
    "pcie_link_max_generation": ("Highest generation that the GPU and its slot allow.",),
    "remapped_rows_total": (
        *("Rows of memory remapped in the GPU's life, by the severity of their errors.", "severity"),
    ),
    "pcie_replays_total": ("Packets that PCIe had to send again.",),
    "nvlink_errors_total": ("Errors of all NVLinks since the driver was loaded, by kind.", "kind"),
}


def families() -> list[Family]:
    """Returns the families that these values and those of the PCIe link are published in."""
    kinds: Iterator[tuple[str, Kind]] = (
        (n, "counter" if n.endswith("_total") else "gauge") for n in FAMILIES
    )
    return [
        Family(f"stepscope_gpu_{name}", kind, FAMILIES[name][0], ("gpu", *FAMILIES[name][1:]))
        for name, kind in kinds
    ]


def hardware_values(gpu: str, answers: Mapping[int, float]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Returns the values in the answers of NVML to HARDWARE_FIELDS."""
    for field, value in answers.items():
        name, labels = HARDWARE[field]
        yield name, (gpu, *labels), value
