"""Building from source."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
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


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_all_is_every_extra():
    extras = project()["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert everything == f"dismec[{','.join(extras)}]"


def test_the_tests_have_the_packages_of_every_extra():
    extras = project()["project"]["optional-dependencies"]
    needed = {need for name, needs in extras.items() if name != "all" for need in needs}
    assert needed <= set(project()["dependency-groups"]["test"])


def test_the_demo_installs_what_the_guide_needs_and_is_not_silent():
    commands = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo"], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    (install,) = (line for line in commands if "--editable" in line)
    assert "'.[server,plots]'" in install
    assert "--quiet" not in install
    assert "--verbose" in install
    assert commands.index(install) > next(
        number for number, line in enumerate(commands) if "Installing what dismec needs" in line
    )
