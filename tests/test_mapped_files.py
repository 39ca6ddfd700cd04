"""Files that are truncated or written to while they are mapped.

Whatever could end the process is tried in another one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from conftest import random_problem
from dismec import TrainingParams, open_model, train
from dismec.data.container import open_arrays, write_arrays
from dismec.data.files import watching
from servers import serving, wait_until

pytestmark = pytest.mark.native

N = 1 << 20


def run(code, *arguments):
    """Run code in a new process; return its exit status and output."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    return done.returncode, done.stdout, done.stderr


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def ended_by_bus_error(code, err):
    """Whether SIGBUS ended a process, or AddressSanitizer in its place."""
    return code == -signal.SIGBUS or (code == 1 and "AddressSanitizer: BUS" in err)


@pytest.fixture
def arrays(tmp_path):
    """A file of four megabytes in which each number is its own index."""
    path = tmp_path / "file.safetensors"
    write_arrays(path, {"x": np.arange(N, dtype=np.float32)}, {})
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("mapped") / "model"
    X, Y = random_problem(rows=400, features=3000, labels=60, density=0.02)
    return train(X, Y, path, TrainingParams(delta=0.0, precision="float32")) and path


@pytest.fixture
def model(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "model")


def test_a_truncated_watched_file_reads_as_zeros_and_is_marked(arrays):
    code = """
        import os, sys
        from dismec.data.container import open_arrays
        from dismec.data.files import watching
        with watching() as files:
            x = open_arrays(sys.argv[1])[0]["x"]
        print(int(x[-1]), files.damage)
        os.truncate(sys.argv[1], 500_000)
        print(x[1000], x[-1], x.sum() < 1e10)
        print(files.damage)
    """
    assert run(code, arrays) == (
        0,
        f"{N - 1} None\n1000.0 0.0 True\nfile.safetensors was cut off while the model was in use\n",
        "",
    )


def test_threads_that_read_a_file_while_it_is_truncated_continue(arrays):
    code = """
        import os, sys
        from concurrent.futures import ThreadPoolExecutor
        from threading import Barrier
        import numpy as np
        from dismec.data.container import open_arrays
        from dismec.data.files import watching
        with watching() as files:
            x = open_arrays(sys.argv[1])[0]["x"]
        ready = Barrier(5)
        def read(number):
            ready.wait()
            while x[number::7].any():
                pass
            return files.damage
        with ThreadPoolExecutor(4) as pool:
            results = [pool.submit(read, number) for number in range(4)]
            ready.wait()
            os.truncate(sys.argv[1], 0)
            for result in results:
                print(result.result())
    """
    code, out, err = run(code, arrays)
    assert (code, err) == (0, "")
    damage = "file.safetensors was cut off while the model was in use"
    assert out.splitlines() == [damage] * 4


def test_an_unwatched_truncated_file_still_ends_the_process(arrays, tmp_path):
    """Its readers could not distinguish zeros from the real contents."""
    shutil.copy(arrays, tmp_path / "other")
    code = """
        import os, sys
        from dismec.data.container import open_arrays
        from dismec.data.files import watching
        with watching() as files:
            watched = open_arrays(sys.argv[1])[0]["x"]
        x = open_arrays(sys.argv[2])[0]["x"]
        os.truncate(sys.argv[2], 0)
        print(x.sum())
    """
    code, out, err = run(code, arrays, tmp_path / "other")
    assert ended_by_bus_error(code, err)
    assert out == ""


def test_an_earlier_handler_gets_signals_of_unwatched_memory(arrays, tmp_path):
    shutil.copy(arrays, tmp_path / "other")
    code = """
        import faulthandler, os, sys
        from dismec.data.container import open_arrays
        from dismec.data.files import watching
        faulthandler.enable()
        with watching() as files:
            watched = open_arrays(sys.argv[1])[0]["x"]
        x = open_arrays(sys.argv[2])[0]["x"]
        os.truncate(sys.argv[1], 0)
        print(watched.sum(), flush=True)
        os.truncate(sys.argv[2], 0)
        print(x.sum())
    """
    code, out, err = run(code, arrays, tmp_path / "other")
    assert ended_by_bus_error(code, err)
    assert out == "0.0\n"
    assert "Fatal Python error: Bus error" in err


def test_a_signal_sent_by_a_process_still_ends_the_process(arrays):
    code = """
        import os, signal, sys
        from dismec.data.container import open_arrays
        from dismec.data.files import watching
        with watching() as files:
            x = open_arrays(sys.argv[1])[0]["x"]
        os.kill(os.getpid(), signal.SIGBUS)
        print("alive")
    """
    code, out, err = run(code, arrays)
    assert ended_by_bus_error(code, err)
    assert out == ""


def test_memory_is_no_longer_watched_after_it_is_reused(arrays, tmp_path):
    """Of files that are gone nothing is left, neither a mark nor a handle."""
    shutil.copy(arrays, tmp_path / "other")
    for path in (arrays, tmp_path / "other"):
        for _ in range(20):
            with watching() as files:
                x = open_arrays(path)[0]["x"]
            assert (files.damage, float(x[7])) == (None, 7.0)
            handles = open_files()
            del x
            assert open_files() < handles
            assert files.damage is None


@pytest.mark.parametrize("change", ["last byte", "same size", "longer"])
def test_any_write_to_a_watched_file_is_noticed(arrays, change):
    """Even if memory shows zeros, or other numbers, and nothing can fail."""
    with watching() as files:
        x = open_arrays(arrays)[0]["x"]
    assert files.damage is None
    arrays.chmod(0o600)
    os.link(arrays, arrays.with_name("link"))
    arrays.rename(arrays.with_name("moved"))
    assert files.damage is None
    size = arrays.with_name("moved").stat().st_size
    if change == "last byte":
        os.truncate(arrays.with_name("moved"), size - 1)
        assert files.damage == "file.safetensors was cut off while the model was in use"
    else:
        with arrays.with_name("moved").open("r+b" if change == "same size" else "ab") as file:
            file.write(b"x")
        assert files.damage == "file.safetensors was written to while the model was in use"
    assert float(x[7]) == 7.0


@pytest.mark.parametrize("pattern", ["shard-*", "labels*"])
def test_a_file_truncated_during_a_request_does_not_crash(model, pattern):
    """Without the check before a request, all of its work runs on zeros."""
    code = """
        import json, os, sys
        from pathlib import Path
        from dismec.serve.answers import Service
        from dismec.serve.contract import Limits
        service = Service(Path(sys.argv[1]), Limits())
        body = {"features": [[f, 1.0] for f in range(0, 3000, 3)]}
        (file,) = Path(sys.argv[1]).glob(sys.argv[2])
        whole = file.stat().st_size
        for share in (2, 1, 0):
            os.truncate(file, whole * share // 3)
            for task, more in ((service.predict, {"k": 60}), (service.explain, {"label": 3})):
                try:
                    task(json.dumps(body | more).encode())
                except Exception as error:
                    print(type(error).__name__)
            print(service.model.damage)
            print(service.reload())
    """
    code, out, err = run(code, model, pattern)
    assert code == 0, err
    (file,) = model.glob(pattern)
    lines = out.splitlines()
    assert lines.count(f"{file.name} was cut off while the model was in use") == 3
    assert lines.count("False") == 3


def test_a_server_survives_a_truncated_shard_and_reopens_the_model(model, tmp_path):
    pytest.importorskip("uvicorn")
    X, _ = random_problem(rows=400, features=3000, labels=60, density=0.02)
    row = X[[0]].tocoo()
    body = {"features": [[int(f), float(v)] for f, v in zip(row.col, row.data, strict=True)]}
    (shard,) = model.glob("shard-*")
    whole = shard.read_bytes()
    with serving(tmp_path, model, "--threads", "2") as server:
        status, _, expected = server.predict(body)
        assert status == 200
        labels, _ = open_model(model).predict_topk(X[[0]], len(expected["labels"]))
        assert expected["labels"] == labels[0].tolist()

        os.truncate(shard, 5000)
        for _ in range(3):
            status, headers, answer = server.predict(body)
            assert (status, headers["Retry-After"]) == (503, "1")
            assert answer == {"error": f"{shard.name} was cut off while the model was in use"}
        assert server.ask("GET", "/health")[0] == 503
        wait_until(lambda: "not reloaded" in server.log.read_text())
        assert server.process.poll() is None

        shard.write_bytes(whole)
        wait_until(lambda: server.predict(body)[0] == 200)
        assert server.predict(body)[2] == expected
        assert server.ask("GET", "/health")[0] == 200
        log = server.log.read_text()
        line = f"{shard.name} was cut off while the model was in use; opening the model again"
        assert line in log
        assert "Traceback" not in log
