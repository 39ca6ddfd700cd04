"""The cost of an installation: sizes of the wheel and its dependencies, times of import and --help.

Installs a wheel (`make wheel`) into a new environment, and again with each extra that is named:

    python benchmarks/install.py dist/dismec-*.whl [--extra server --extra all]

Times are CPU times, the minimum of several runs, next to those of bare Python.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from machine import print_heading

RUNS = 15
BARE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def size(folder: Path) -> float:
    """MB of all files in a folder."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6


def milliseconds(*command: object) -> float:
    """Return the minimum CPU time of several runs, which other work hardly changes."""

    def once() -> float:
        before = getrusage(RUSAGE_CHILDREN)
        subprocess.run(list(map(str, command)), env=BARE, check=True, stdout=subprocess.DEVNULL)
        after = getrusage(RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return 1e3 * min(once() for _ in range(RUNS))


def environment(python: str, folder: Path, requirement: str) -> tuple[Path, Path]:
    """Create an environment with one requirement; return its programs and its packages."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    programs = folder / "bin"
    pip = [sys.executable, "-m", "pip", "--python", folder, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--only-binary", ":all:", requirement], check=True)
    code = "import sysconfig; print(sysconfig.get_paths()['platlib'])"
    found = subprocess.run([programs / "python", "-c", code], stdout=subprocess.PIPE, check=True)
    return programs, Path(found.stdout.decode().strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable, help="a Python that the wheel supports")
    parser.add_argument("--extra", action="append", default=[])
    args = parser.parse_args()
    print_heading()
    with zipfile.ZipFile(args.wheel) as packed:
        native = sum(f.file_size for f in packed.infolist() if "_native_" in f.filename) / 1e6
    print(f"wheel: {args.wheel.stat().st_size / 1e6:.2f} MB ({native:.1f} MB native, unpacked)")
    with tempfile.TemporaryDirectory() as scratch:
        programs, packages = environment(args.python, Path(scratch) / "core", str(args.wheel))
        print(f"dismec installed: {size(packages / 'dismec'):.1f} MB")
        print(f"with numpy, scipy, click and rich: {size(packages):.0f} MB")
        for extra in args.extra:
            _, others = environment(args.python, Path(scratch) / extra, f"{args.wheel}[{extra}]")
            print(f"with the extra {extra}: {size(others):.0f} MB")
        python = programs / "python"
        for name, command in (
            ("python -c pass", (python, "-c", "pass")),
            ("import dismec", (python, "-c", "import dismec")),
            ("import dismec; dismec.train", (python, "-c", "import dismec; dismec.train")),
            ("dismec --help", (programs / "dismec", "--help")),
            ("dismec train --help", (programs / "dismec", "train", "--help")),
        ):
            print(f"{name}: {milliseconds(*command):.0f} ms")


if __name__ == "__main__":
    main()
