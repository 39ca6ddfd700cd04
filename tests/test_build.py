"""Building from source."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not on the path")
def test_without_a_compiler_a_sentence_says_so(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cmake", "make", "ninja", "uname"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    environment = {k: v for k, v in os.environ.items() if k not in ("CXX", "CC", "CMAKE_ARGS")}
    result = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path / "build"],
        capture_output=True,
        text=True,
        env={**environment, "PATH": str(tools)},
    )
    assert result.returncode != 0
    said = " ".join(result.stderr.split())
    assert "dismec needs a C++20 compiler and found none: install one" in said
