"""Trained models and their answers are byte for byte those of earlier versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from dismec.cpu import kernels

pytestmark = pytest.mark.native

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"),
    reason="golden on x86-64 and 64-bit ARM",
)
@pytest.mark.parametrize("isa", kernels.cpu_isas())
def test_weights_and_answers_equal_the_recorded_ones(tmp_path, isa):
    """Compare the portable kernels, and all others, which fuse multiplication and addition.

    ``golden/trained.json`` holds the expected output of the script, as ``bytes`` and ``fused``; it
    is renewed only with a change that is meant to alter weights or the format.
    """
    command = [sys.executable, GOLDEN / "train_and_hash.py", tmp_path]
    environment = os.environ | {"DISMEC_ISA": isa}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found, golden = json.loads(ran.stdout), json.loads((GOLDEN / "trained.json").read_text())
    if found["data"] != golden["data"]:
        pytest.skip("this version of numpy draws other random numbers")
    assert found["bytes"] == golden["bytes" if isa == "base" else "fused"]
