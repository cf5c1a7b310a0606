"""The checksum of a recording's JSON files."""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32


def checksum_of(values: dict[str, Any]) -> str:
    """Returns the CRC-32 of the values without the checksum itself."""
    return f"{crc32(json.dumps(values, sort_keys=True).encode()):08x}"
