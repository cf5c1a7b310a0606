"""Damages the bytes of files, for tests and trials."""


def flipped(data: bytes, bit: int) -> bytes:
    """The data with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
