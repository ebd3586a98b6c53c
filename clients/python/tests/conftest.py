"""Fixtures that several tests share."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

DATA = pathlib.Path(__file__).resolve().parents[3] / "tests" / "data"


@pytest.fixture(scope="session")
def conversations() -> list[dict[str, Any]]:
    """The recorded conversations."""
    lines = (DATA / "agent-trajectories.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
