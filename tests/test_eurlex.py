"""Eurlex-4K from file to metrics, on the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.data]


def dismec(*arguments):
    command = [sys.executable, "-m", "dismec", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_eurlex_reaches_the_accuracy_of_dismec(real_data, tmp_path):
    data = real_data / "eurlex-4k"
    dismec("train", data / "train.txt.gz", "-o", tmp_path / "model", "--C", "1", "--calibrate")
    printed = dismec("evaluate", tmp_path / "model", data / "test.txt.gz", "--json")
    result = json.loads(printed)
    assert result["rows"] == 3809
    for key, least in {"P@1": 83.5, "P@3": 70.5, "P@5": 58.9, "PSP@5": 50.4}.items():
        assert result[key] >= least, key
    assert result["ECE"] < 3
    # What ProXML reports, and the cost of this ranking.
    printed = dismec("evaluate", tmp_path / "model", data / "test.txt.gz", "--json", "--aim", "psp")
    tail = json.loads(printed)
    for key, least in {"PSP@1": 45.2, "PSP@3": 48.5, "PSP@5": 51.0, "P@1": 75, "P@5": 57}.items():
        assert tail[key] >= least, key
