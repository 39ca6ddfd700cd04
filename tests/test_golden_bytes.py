"""Trained models and their answers are byte for byte those of earlier versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="golden on x86-64")
def test_weights_and_answers_are_those_that_were_written_before(tmp_path):
    """With the portable kernels, whose arithmetic is the same on every x86-64 CPU.

    ``golden/trained.json`` holds what the script printed before; it is renewed only with a change
    that is meant to alter weights or the format.
    """
    command = [sys.executable, GOLDEN / "train_and_hash.py", tmp_path]
    environment = os.environ | {"DISMEC_ISA": "base"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found, golden = json.loads(ran.stdout), json.loads((GOLDEN / "trained.json").read_text())
    if found["data"] != golden["data"]:
        pytest.skip("this version of numpy draws other random numbers")
    assert found["bytes"] == golden["bytes"]
