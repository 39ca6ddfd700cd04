"""Building from source."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from dismec import _native_base

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not on the path")
def test_a_missing_compiler_is_reported(tmp_path):
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


CPUINFO = Path("/proc/cpuinfo")


@pytest.mark.skipif(platform.machine() != "x86_64" or not CPUINFO.exists(), reason="x86-64 Linux")
def test_detected_instruction_sets_match_those_of_the_kernel():
    flags = set(re.search(r"^flags\s*: (.*)$", CPUINFO.read_text(), re.MULTILINE)[1].split())
    avx2 = {"avx2", "fma", "bmi1", "bmi2", "f16c", "popcnt"} <= flags
    avx512 = avx2 and {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags
    assert _native_base.cpu_isas() == ["avx512"] * avx512 + ["avx2"] * avx2 + ["base"]


def script(name):
    """Import a module of .ci, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def test_the_core_is_numpy_scipy_and_the_command_line():
    names = [re.split(r"\W", need)[0] for need in project()["project"]["dependencies"]]
    assert names == ["numpy", "scipy", "click", "rich"]


def test_the_extras_are_these():
    extras = project()["project"]["optional-dependencies"]
    assert set(extras) == {"sklearn", "server", "dask", "plots", "arrow", "text", "encoder", "all"}


def test_every_requirement_names_its_lowest_version():
    lowest = script("lowest")
    found = lowest.constraints(ROOT / "pyproject.toml")
    assert {"numpy==1.26", "distributed==2024.1"} <= set(found)
    assert all(re.fullmatch(r"[\w.-]+==[\d.]+", line) for line in found)
    names = [line.partition("==")[0] for line in found]
    assert len(names) == len(set(names)), "one package with two lowest versions"
    assert len(lowest.constraints(ROOT / "pyproject.toml", build=True)) == 2
    with pytest.raises(SystemExit, match="numpy names no lowest version"):
        lowest.lowest("numpy")


def test_everything_but_the_estimators_works_without_scikit_learn():
    code = (
        "import sys\n"
        "sys.modules['sklearn'] = None\n"
        "import dismec\n"
        "dismec.train, dismec.open_model, dismec.evaluate\n"
        "for name in ('DiSMECClassifier', 'DiSMECTextClassifier', 'label_scorer'):\n"
        "    try:\n"
        "        getattr(dismec, name)\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = "the estimators need scikit-learn: pip install 'dismec[sklearn]'"
    assert ran.stdout.splitlines() == [said] * 3


def test_importing_dismec_imports_no_other_package():
    code = "import sys, dismec; print(*{name.split('.')[0] for name in sys.modules})"
    bare = subprocess.run([sys.executable, "-c", code.replace(", dismec", "")], capture_output=True)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    new = set(ran.stdout.decode().split()) - set(bare.stdout.decode().split())
    assert new - sys.stdlib_module_names == {"dismec"}


def test_wheels_are_built_for_each_system_and_abi():
    wheels = project()["tool"]["cibuildwheel"]
    assert wheels["build"] == ["cp311-*", "cp312-*", "cp314t-*"]
    assert project()["tool"]["scikit-build"]["wheel"]["py-api"] == "cp312"
    runners = workflow("wheels.yml")["jobs"]["wheels"]["strategy"]["matrix"]["os"]
    kinds = {re.sub(r"-[\d.]+", "", runner) for runner in runners}
    assert kinds == {"ubuntu", "ubuntu-arm", "macos", "macos-intel", "windows"}


def test_only_the_publishing_job_may_request_an_identity_token():
    jobs = workflow("wheels.yml")["jobs"] | workflow("ci.yml")["jobs"]
    assert {name for name, job in jobs.items() if "id-token" in job["permissions"]} == {"publish"}
    assert jobs["publish"]["needs"] == ["sdist", "wheels"]
    assert jobs["publish"]["if"] == "github.event_name == 'release'"


def test_targets_run_by_workflows_exist():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "".join(p.read_text() for p in (ROOT / ".github" / "workflows").glob("*.yml"))
    run = set(re.findall(r"\bmake ([a-z0-9-]+)", text + (ROOT / ".ci" / "run").read_text()))
    assert {"test", "lint", "lowest", "sanitize", "warnings", "wheel"} <= run <= targets


def test_all_is_every_extra_but_the_one_of_gigabytes():
    extras = project()["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert extras.pop("encoder") == ["sentence-transformers>=5.1"]
    assert everything == f"dismec[{','.join(extras)}]"


def test_the_tests_have_the_packages_of_every_extra_in_all():
    extras = project()["project"]["optional-dependencies"]
    extras.pop("encoder")  # its tests are skipped where it is not installed
    needed = {need for name, needs in extras.items() if name != "all" for need in needs}
    assert needed <= set(project()["dependency-groups"]["test"])


@pytest.fixture
def install(tmp_path):
    """Return a function that runs `make .venv/installed` with a fake pip, in a path with spaces."""
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


def test_the_demo_installs_what_the_tutorial_needs_and_shows_progress(install):
    result, asked, venv = install(0)
    assert result.returncode == 0, result.stderr
    assert "--editable .[sklearn,server,plots]" in asked
    said = result.stdout
    assert "== Installing dependencies and compiling dismec" in said
    assert said.index("Collecting numpy") < said.index("[3/39] Building CXX object")
    assert "noise" not in said
    assert "noise" in (venv / "install.log").read_text()
    assert (venv / "installed").exists()


def test_an_installation_that_fails_stops_the_demo_and_shows_the_output(install):
    result, _, venv = install(1)
    assert result.returncode != 0
    assert "noise" in result.stdout
    assert "the whole output is in .venv/install.log" in result.stdout
    assert not (venv / "installed").exists()
    assert install(0)[0].returncode == 0


def test_a_missing_cross_compiler_is_reported_with_what_to_install(tmp_path):
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
