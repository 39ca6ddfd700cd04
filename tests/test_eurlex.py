"""The real thing: Eurlex-4K from file to metrics, by the command line."""

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
    dismec("train", data / "train.txt.gz", "-o", tmp_path / "model", "--C", "1")
    printed = dismec("evaluate", tmp_path / "model", data / "test.txt.gz", "--json")
    result = json.loads(printed)
    assert result["rows"] == 3809
    for key, least in {"P@1": 83.5, "P@3": 70.5, "P@5": 58.9, "PSP@5": 50.4}.items():
        assert result[key] >= least, key
