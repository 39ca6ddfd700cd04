"""What an install takes: sizes of the wheel and of what it brings, time to import and to get help.

Installs a wheel (`make wheel`) into a new environment, and again with each extra that is named:

    python benchmarks/install.py dist/dismec-*.whl [--extra server --extra all]

Times are the least of several runs, beside those of Python alone in the same environment.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from machine import print_heading

RUNS = 15


def size(folder: Path) -> float:
    """MB of all files in a folder."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6


def milliseconds(*command: object) -> tuple[float, float]:
    """The least and the median time of a command; the first run is not counted."""
    seconds = []
    for _ in range(RUNS + 1):
        begin = time.perf_counter()
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - begin)
    return 1e3 * min(seconds[1:]), 1e3 * statistics.median(seconds[1:])


def environment(folder: Path, requirement: str) -> tuple[Path, Path]:
    """A new environment with one requirement: its programs and its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", folder, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--only-binary", ":all:", requirement], check=True)
    code = "import sysconfig; print(sysconfig.get_paths()['platlib'])"
    found = subprocess.run([programs / "python", "-c", code], stdout=subprocess.PIPE, check=True)
    return programs, Path(found.stdout.decode().strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--extra", action="append", default=[])
    args = parser.parse_args()
    print_heading()
    with zipfile.ZipFile(args.wheel) as packed:
        native = sum(f.file_size for f in packed.infolist() if "_native_" in f.filename) / 1e6
    print(f"wheel: {args.wheel.stat().st_size / 1e6:.2f} MB ({native:.1f} MB native, unpacked)")
    with tempfile.TemporaryDirectory() as scratch:
        programs, packages = environment(Path(scratch) / "core", str(args.wheel))
        print(f"dismec installed: {size(packages / 'dismec'):.1f} MB")
        print(f"with numpy, scipy, click and rich: {size(packages):.0f} MB")
        for extra in args.extra:
            _, others = environment(Path(scratch) / extra, f"{args.wheel}[{extra}]")
            print(f"with the extra {extra}: {size(others):.0f} MB")
        python = programs / "python"
        milliseconds(python, "-m", "dismec", "--help")  # byte code is written
        for name, command in (
            ("python -c pass", (python, "-c", "pass")),
            ("import dismec", (python, "-c", "import dismec")),
            ("import dismec; dismec.train", (python, "-c", "import dismec; dismec.train")),
            ("dismec --help", (programs / "dismec", "--help")),
            ("dismec train --help", (programs / "dismec", "train", "--help")),
        ):
            least, median = milliseconds(*command)
            print(f"{name}: {least:.0f} ms (median {median:.0f})")


if __name__ == "__main__":
    main()
