"""Ids that the client makes."""

from __future__ import annotations

import os
import secrets
import time


def uuid7() -> str:
    """A UUIDv7: random, and in the order of time."""
    millis = time.time_ns() // 1_000_000
    number = (millis & (1 << 48) - 1) << 80 | secrets.randbits(80)
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def consumer_id() -> str:
    """A name for one consumer of leases, never used by another."""
    return f"py-{os.getpid()}-{secrets.token_hex(8)}"
