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


@pytest.fixture
def install(tmp_path):
    """Runs `make .venv/installed`, in a path with spaces, where pip is made up."""
    if shutil.which("make") is None:
        pytest.skip("make is not on the path")
    root = tmp_path / "a clone"
    (root / "src").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "CMakeLists.txt"):
        shutil.copy(ROOT / name, root / name)
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)

    def run(code):
        lines = "Collecting numpy\\n  [3/39] Building CXX object a.o\\na.h: warning: noise\\n"
        python.write_text(f'#!/bin/sh\necho "$@" > asked\nprintf "{lines}"\nexit {code}\n')
        python.chmod(0o755)
        result = subprocess.run(
            ["make", ".venv/installed"], cwd=root, capture_output=True, text=True
        )
        return result, (root / "asked").read_text(), root / ".venv"

    return run


def test_the_demo_installs_what_the_guide_needs_and_shows_how_far_it_is(install):
    result, asked, venv = install(0)
    assert result.returncode == 0, result.stderr
    assert "--editable .[server,plots]" in asked
    said = result.stdout
    assert "== Installing what dismec needs" in said
    assert said.index("Collecting numpy") < said.index("[3/39] Building CXX object")
    assert "noise" not in said
    assert "noise" in (venv / "install.log").read_text()
    assert (venv / "installed").exists()


def test_an_installation_that_fails_stops_the_demo_and_shows_the_output(install):
    result, _, venv = install(1)
    assert result.returncode != 0
    assert "noise" in result.stdout
    assert "all of the output is in .venv/install.log" in result.stdout
    assert not (venv / "installed").exists()
    assert install(0)[0].returncode == 0


def test_without_a_cross_compiler_a_line_says_what_to_install(tmp_path):
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))
    result = subprocess.run(
        [shutil.which("bash"), ROOT / "tools" / "aarch64.sh"],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    assert line.startswith("aarch64: skipped, because aarch64-linux-gnu-g++ qemu-aarch64")
    assert "apt install g++-aarch64-linux-gnu qemu-user" in line
