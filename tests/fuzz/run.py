"""Tries mutated inputs in a supervised process, and keeps those that show a fault.

``python tests/fuzz/run.py --seconds 60``, or ``make fuzz SECONDS=60`` under the sanitizers. Faults
are kept in the folder ``--faults``, with their inputs; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
# Memory allowed: bytes per byte of input, and bytes on top.
TIMES, ALWAYS = 10, (256 if SANITIZED else 64) << 20
SLOW = 60.0  # CPU seconds per input; a process that takes five times as long is ended
STUCK = 1800.0  # seconds without progress, whatever else the machine does
ADDRESSES = 12 << 30  # address space of a process without sanitizers, to protect the machine
PROGRESS = struct.Struct("qq")  # inputs so far, and a counter that grows with every step


class Faults:
    """A folder of inputs that showed a fault, with one subfolder each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, name: str, what: str, inputs: Path) -> None:
        place = self.folder / name.replace(" ", "-").replace("/", "-")
        if place.exists():
            return
        place.mkdir(parents=True)
        (place / "what.txt").write_text(what)
        if inputs.is_dir():
            shutil.copytree(inputs, place / "inputs", ignore=_pipes)
        elif inputs.exists():
            shutil.copy(inputs, place / inputs.name)
        print(f"FAULT {name}: {what.splitlines()[-1][:200]}", flush=True)

    def __len__(self) -> int:
        return len(list(self.folder.iterdir())) if self.folder.exists() else 0


def _pipes(folder: str, names: list[str]) -> list[str]:
    """Return pipes and devices, which cannot be copied."""
    paths = {name: Path(folder, name) for name in names}
    return [name for name, path in paths.items() if not (path.is_file() or path.is_dir())]


class Meter:
    """Measures the peak memory and CPU time of one input after another."""

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._begin_anew(self._memory("VmHWM"))

    def _memory(self, what: str) -> int:
        """Return the current (VmRSS) or peak (VmHWM) memory of this process in bytes."""
        status = os.pread(self._status, 1 << 14, 0).decode()
        return int(status.partition(f"{what}:")[2].split(maxsplit=1)[0]) << 10

    def fault_of(self, size: int, attempt: Callable[[], object]) -> str | None:
        """Return what is wrong with how an input of `size` bytes is handled, or None."""
        from dismec.errors import DismecError

        begin = time.process_time()
        try:
            attempt()
        except DismecError as error:
            text = str(error)
            if not text.strip() or "\n" in text or len(text) > 5000:
                return f"an error that is not one line: {text!r}"
        except KeyboardInterrupt:
            raise
        except BaseException:
            return traceback.format_exc()
        took = time.process_time() - begin
        if took > SLOW * (5 if SANITIZED else 1):
            return f"{took:.1f} CPU seconds for {size:,} bytes"
        peak = self._memory("VmHWM")
        taken = peak - self._before
        if taken > ALWAYS // 4:
            self._begin_anew(peak)
        if taken > TIMES * size + ALWAYS:
            return f"{taken >> 20:,} MB of memory for {size:,} bytes"
        return None

    def _begin_anew(self, peak: int) -> None:
        """Reset the peak, so that it is not attributed to a later input."""
        self._before = peak
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            self._before = self._memory("VmRSS")


def work(arguments: argparse.Namespace) -> None:
    """Try inputs until ended, or until enough have been tried."""
    import numpy as np

    from fuzz.bombs import bombs
    from fuzz.targets import Workshop

    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    faults = Faults(arguments.faults)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, _progress(arguments) as step:
        shop = Workshop(Path(folder))
        cases = bombs(Path(folder) / "bombs") if arguments.first == 0 else []
        meter = Meter()
        for name, path, size, attempt in cases:
            step(0)
            if fault := meter.fault_of(size, attempt):
                faults.keep(f"bomb {name}", fault, path)
        shares = [target.share for target in shop.targets]
        counts = dict.fromkeys((target.name for target in shop.targets), 0)
        for number in itertools.count(arguments.first):
            if arguments.inputs and number >= arguments.inputs:
                break
            rng = random.Random(f"{arguments.seed} {number}")
            target = rng.choices(shop.targets, shares)[0]
            size, attempt = target.make(rng)
            if fault := meter.fault_of(size, attempt):
                faults.keep(f"{target.name} {number}", fault, shop.current)
                shutil.rmtree(shop.current)
                shop.current.mkdir()
            counts[target.name] += 1
            step(number + 1)
        print(json.dumps(counts), flush=True)


@contextmanager
def _progress(arguments: argparse.Namespace) -> Iterator[Callable[[int], None]]:
    with arguments.progress.open("r+b") as file, mmap.mmap(file.fileno(), PROGRESS.size) as shared:
        beat = itertools.count(1)

        def step(done: int) -> None:
            shared[:] = PROGRESS.pack(done, next(beat))

        yield step


def watch(arguments: argparse.Namespace) -> int:
    """Start processes that try inputs, one after another, and supervise them."""
    end = time.monotonic() + arguments.seconds if arguments.seconds else None
    faults = Faults(arguments.faults)
    first = 0
    with tempfile.TemporaryDirectory(prefix="dismec-fuzz-") as folder:
        arguments.folder, arguments.progress = folder, Path(folder) / "progress"
        arguments.progress.write_bytes(PROGRESS.pack(0, 0))
        while True:
            process = subprocess.Popen(_command(arguments, first), start_new_session=True)
            reason = _wait(process, arguments.progress, end)
            first, _ = PROGRESS.unpack(arguments.progress.read_bytes())
            if reason is None:
                break
            for left in Path(folder).glob("*/current"):
                faults.keep(f"input {first} of seed {arguments.seed}", reason, left)
            for left in Path(folder).glob("tmp*"):
                shutil.rmtree(left, ignore_errors=True)
            first += 1
    print(f"{first:,} inputs, {len(faults)} faults", flush=True)
    return 1 if len(faults) else 0


def _command(arguments: argparse.Namespace, first: int) -> list[str]:
    options = {
        "seed": arguments.seed,
        "inputs": arguments.inputs,
        "faults": arguments.faults,
        "first": first,
        "folder": arguments.folder,
        "progress": arguments.progress,
    }
    pairs = ((f"--{key}", str(value)) for key, value in options.items())
    return [sys.executable, __file__, *itertools.chain.from_iterable(pairs)]


def _wait(process: subprocess.Popen, progress: Path, end: float | None) -> str | None:
    """Return why a process ended before it was done; None if it was done."""
    beat, since, told, spent = -1, time.monotonic(), time.monotonic(), 0.0
    try:
        while process.poll() is None:
            time.sleep(0.2)
            done, now = PROGRESS.unpack(progress.read_bytes())
            if now != beat:
                beat, since, spent = now, time.monotonic(), _cpu_seconds(process.pid)
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(f"{done:,} inputs", flush=True)
            if end is not None and time.monotonic() > end:
                return None
            if time.monotonic() - since > STUCK:
                return f"no end after {STUCK:.0f} seconds"
            if _cpu_seconds(process.pid) - spent > 5 * SLOW:
                return f"no end after {5 * SLOW:.0f} CPU seconds"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return f"the process ended with status {process.returncode}" if process.returncode else None


def _cpu_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0, help="when to stop; 0: never")
    parser.add_argument("--inputs", type=int, default=0, help="how many inputs; 0: no limit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=Path, default=Path("build/fuzz"))
    for option in ("--first", "--folder", "--progress"):  # for the process that tries inputs
        kind = int if option == "--first" else Path
        parser.add_argument(option, type=kind, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.progress is None:
        return watch(arguments)
    work(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
