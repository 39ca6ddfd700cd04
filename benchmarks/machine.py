"""What stands above every table: the machine, the date and the versions."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import version
from pathlib import Path

from dismec.cpu import available_cpus, kernels


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def print_heading(*packages: str, **versions: str) -> None:
    """Print machine, date, and the versions of dismec, `packages` and what else is given."""
    found = {name: version(name) for name in ("dismec", "numpy", "scipy", *packages)} | versions
    print(f"{cpu_name()}, {available_cpus()} cores, {kernels.isa} kernels; {datetime.date.today()}")
    print(", ".join(f"{name} {number}" for name, number in found.items()))
    print(f"Python {platform.python_version()}, {platform.system()} {platform.release()}\n")
