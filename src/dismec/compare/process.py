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
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from dismec.compare import worker
from dismec.compare.worker import PEERS
from dismec.cpu import physical_memory
from dismec.errors import DismecError

__all__ = ["PACKAGES", "SystemProcess", "peers_python"]

_LOOK_SECONDS = 0.2  # between checks of the memory of a process
_MOST_OF_MEMORY = 0.9  # default share of the machine's memory for a system
_LIBRARIES = ("OMP", "OPENBLAS", "MKL")
PACKAGES = tuple(dict.fromkeys(package for _, package, _ in PEERS.values()))


class SystemProcess:
    """A running system: it is trained once and predicts as often as requested.

    It is killed after `limit` seconds without a report, or when it and its children use more than
    `memory` bytes.
    """

    def __init__(
        self,
        system: str,
        folder: Path,
        *,
        threads: int,
        seed: int = 0,
        python: Path | None = None,
        limit: float | None = None,
        memory: int | None = None,
    ) -> None:
        self.system = system
        self._limit = limit
        present = physical_memory()
        self._memory = memory or (int(_MOST_OF_MEMORY * present) if present else None)
        self._lines: SimpleQueue[str] = SimpleQueue()  # the last line is truncated or empty
        self._peak = 0  # bytes used by it and its children, if any
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115  until it is closed
        command: list[object] = [sys.executable, "-m", "dismec.compare.ours"]
        if system in PEERS:
            command = [python or sys.executable, worker.__file__]
        command += [folder, system, threads, seed]
        # Linear algebra libraries start their own threads in addition to those of our systems.
        of_library = str(threads if system in PEERS else 1)
        environment = os.environ | {f"{name}_NUM_THREADS": of_library for name in _LIBRARIES}
        self._process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env=environment,
            start_new_session=True,
            text=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        while (line := self._process.stdout.readline()).endswith("\n"):
            self._lines.put(line)
        self._lines.put("")

    def report(self) -> dict[str, Any]:
        """Return the next report; {"error": …} if there will be none."""
        begin = time.monotonic()
        while True:
            with suppress(Empty):
                line = self._lines.get(timeout=_LOOK_SECONDS)
                break
            if self._limit is not None and time.monotonic() - begin > self._limit:
                return {"error": f"did not finish within {self._limit:g} s"}
            used, n_processes = _group_bytes(self._process.pid)
            if n_processes > 1:
                self._peak = max(self._peak, used)
            if self._memory is not None and used > self._memory:
                return {"error": f"used more than {self._memory / 1e9:g} GB of memory"}
        if not line:
            return {"error": self._ending()}
        report: dict[str, Any] = json.loads(line)
        if "peak" in report:
            report["peak"] = max(report["peak"], self._peak)
        return report

    def again(self) -> dict[str, Any]:
        """Return another report, with prediction timed again."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.report()

    def output(self) -> str:
        """Return the end of its output."""
        self._output.seek(0)
        return self._output.read()[-3000:]

    def _ending(self) -> str:
        code = self._process.wait()
        if code == -9:  # SIGKILL
            return "killed, probably out of memory"
        lines = self.output().strip().splitlines()
        why = f": {lines[-1][:300]}" if lines else ""
        if code < 0:
            return f"ended by signal {-code}{why}"
        return f"ended with code {code}{why}"

    def close(self) -> None:
        """Kill it and everything it has started."""
        assert self._process.stdin
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(timeout=1)
        _kill_all(self._process.pid)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout
        self._process.stdout.close()
        self._output.close()


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
    windows = sys.platform == "win32"
    python = folder / ("Scripts/python.exe" if windows else "bin/python")
    installed = folder / "installed"
    if python.exists() and (installed.exists() or not (folder / "begun").exists()):
        return python
    if folder.exists() and any(folder.iterdir()) and not (folder / "begun").exists():
        raise DismecError(f"{folder} is not a Python environment")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "begun").touch()
    made = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True, check=False)
    if made.returncode:
        raise DismecError(f"{folder}: python -m venv could not create an environment there")
    missing = []
    for package in PACKAGES:
        log(f"{folder}: installing {package}")
        # One by one: some have no wheel for some machines, which should not affect the others.
        command = [str(python), "-m", "pip", "install", "--quiet", package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            missing.append(package)
            log(f"{folder}: pip could not install {package}")
    if len(missing) == len(PACKAGES):
        raise DismecError(f"pip could not install any of {', '.join(PACKAGES)} into {folder}")
    installed.touch()
    return python
