"""A system in its own process, with limits on time and memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dismec.compare import worker
from dismec.compare.worker import PEERS
from dismec.cpu import physical_memory
from dismec.errors import DismecError

_LOOK_SECONDS = 0.2  # between checks of the memory of a process
_MOST_OF_MEMORY = 0.9  # default share of the machine's memory for a system
_LIBRARIES = ("OMP", "OPENBLAS", "MKL")
PACKAGES = tuple(dict.fromkeys(package for _, package, _ in PEERS.values()))


def run_system(
    system: str,
    folder: Path,
    *,
    threads: int,
    seed: int = 0,
    python: Path | None = None,
    limit: float | None = None,
    memory: int | None = None,
) -> dict[str, Any]:
    """Train a system and let it predict; return its report, or {"error": …}.

    It is killed after `limit` seconds, or when it and its children use more than `memory` bytes.
    """
    command: list[object] = [sys.executable, "-m", "dismec.compare.ours"]
    if system in PEERS:
        command = [python or sys.executable, worker.__file__]
    command += [folder, system, threads, seed]
    # Linear algebra libraries start their own threads in addition to those of our systems.
    of_library = str(threads if system in PEERS else 1)
    with tempfile.TemporaryFile("w+") as reports, tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,  # it ends when this is closed
            stdout=reports,
            stderr=output,
            env=os.environ | {f"{name}_NUM_THREADS": of_library for name in _LIBRARIES},
            start_new_session=True,
        )
        with process:
            try:
                peak, failure = _watch(process, limit, memory)
            finally:
                _kill_all(process.pid)
        if failure:
            return {"error": failure}
        for file in (reports, output):
            file.seek(0)
        try:
            report: dict[str, Any] = json.loads(reports.read())
        except ValueError:  # missing or truncated
            return {"error": _ending(process.returncode, output.read()[-3000:])}
    if "peak" in report:
        report["peak"] = max(report["peak"], peak)
    return report


def _watch(
    process: subprocess.Popen[bytes], limit: float | None, memory: int | None
) -> tuple[int, str]:
    """Wait for a process; return the memory it used with children, and why it must be killed."""
    present = physical_memory()
    memory = memory or (int(_MOST_OF_MEMORY * present) if present else None)
    peak, begin = 0, time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_LOOK_SECONDS)
            return peak, ""
        if limit is not None and time.monotonic() - begin > limit:
            return peak, f"did not finish within {limit:g} s"
        used, n_processes = _group_bytes(process.pid)
        if n_processes > 1:
            peak = max(peak, used)
        if memory is not None and used > memory:
            return peak, f"used more than {memory / 1e9:g} GB of memory"


def _ending(code: int, output: str) -> str:
    """Describe the end of a process without a report."""
    if code == -9:  # SIGKILL
        return "killed, probably out of memory"
    lines = output.strip().splitlines()
    why = f": {lines[-1][:300]}" if lines else ""
    return f"ended by signal {-code}{why}" if code < 0 else f"ended with code {code}{why}"


def _kill_all(leader: int) -> None:
    """Kill a process and the processes it has started."""
    if sys.platform == "win32":
        command = ["taskkill", "/F", "/T", "/PID", str(leader)]
        subprocess.run(command, capture_output=True, check=False)
    else:
        with suppress(OSError):  # no process is left
            os.killpg(leader, signal.SIGKILL)


def _group_bytes(group: int) -> tuple[int, int]:
    """Return the memory and number of the processes in a group; 0 if unknown.

    Shared memory counts once: a process that has just been forked shares everything.
    """
    total = n_processes = 0
    if sys.platform == "win32":
        return 0, 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) != group:
                continue
            text = (folder / "smaps_rollup").read_text()
            total += 1024 * int(text.partition("\nPss:")[2].split()[0])
            n_processes += 1
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    return total, n_processes


def peers_python(folder: Path, log: Callable[[str], None] = lambda _: None) -> Path:
    """Return the Python of an environment with the peers, creating it with pip if needed.

    `log` receives what is installed, and what pip could not install.
    """
    folder = folder.resolve()
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    unfinished = folder / "unfinished"  # present until all is installed
    if python.exists() and not unfinished.exists():
        return python
    if folder.exists() and any(folder.iterdir()) and not unfinished.exists():
        raise DismecError(f"{folder} is not a Python environment")
    folder.mkdir(parents=True, exist_ok=True)
    unfinished.touch()
    made = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True, check=False)
    if made.returncode:
        raise DismecError(f"{folder}: python -m venv could not create an environment there")
    missing = []
    for package in PACKAGES:
        log(f"{folder}: installing {package}")
        # One by one: some have no wheel for some machines, which should not affect the others.
        command = [str(python), "-m", "pip", "install", "--quiet", package]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            missing.append(package)
            log(f"{folder}: pip could not install {package}")
    if len(missing) == len(PACKAGES):
        raise DismecError(f"pip could not install any of {', '.join(PACKAGES)} into {folder}")
    unfinished.unlink()
    return python
