"""The recipes of the page on clusters work: a workstation, SSH, SLURM, Kubernetes' commands."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from clusters import wait_until
from conftest import random_problem, weight_files
from dismec import save_data, train
from dismec.data.dataset import Dataset

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "docs" / "recipes"
DASK = [sys.executable, "-m", "dask"]
LONG = 300.0  # seconds, for what takes a few on an idle machine


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "train.xmc"
    save_data(Dataset(*random_problem()), path)
    return path


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    path = tmp_path_factory.mktemp("expected") / "model"
    train(*random_problem(), path)
    return weight_files(path)


def environment(**more):
    """Return an environment that finds `dismec` and `dask` of this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **{key: str(value) for key, value in more.items()}}


def needed(*commands):
    """Return the paths of commands; skips the test if one is missing."""
    path = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
    found = [shutil.which(command, path=path) for command in commands]
    if None in found:
        pytest.skip(f"no {commands[found.index(None)]} here")
    return found


def free_ports(number):
    """Return ports that nobody listens on."""
    with ExitStack() as held:
        servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
        for server in servers:
            held.enter_context(server)
        return [server.getsockname()[1] for server in servers]


def answers(host, port):
    with suppress(OSError):
        socket.create_connection((host, port), 5).close()
        return True
    return False


def processes_of(text):
    """Return the command lines of processes that contain a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(text) in line and path.parent.name != str(os.getpid()):
                found.append(line)
    return found


class Servers:
    """Processes that are stopped at the end, the last one first."""

    def __init__(self, folder):
        self.folder = folder
        self._started = ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._started.close()

    def start(self, *command, name="server", **options):
        log = self._started.enter_context((self.folder / f"{name}.log").open("ab"))
        process = subprocess.Popen(
            [*map(str, command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options
        )

        def stop():
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

        self._started.callback(stop)
        return process


def test_a_workstation_trains_on_its_own_cluster(tmp_path):
    (commands,) = re.findall(
        r"```sh\n(dismec gen.*?)```", (ROOT / "docs/howto/cluster.md").read_text(), re.S
    )
    # Without job control a shell has no numbers for background jobs.
    run = ["bash", "-emc", commands]
    subprocess.run(run, cwd=tmp_path, check=True, env=environment(), timeout=LONG)
    subprocess.run(
        [sys.executable, "-m", "dismec", "train", "data/train.txt", "-o", "here"],
        cwd=tmp_path,
        check=True,
    )
    assert weight_files(tmp_path / "model") == weight_files(tmp_path / "here")


@pytest.fixture
def ssh(tmp_path):
    """The options of a client for the test's own SSH server, at any address of this machine."""
    server, client, keygen = needed("sshd", "ssh", "ssh-keygen")
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for key in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    apart = Path("/run/sshd")  # where a server started by root confines its children
    made = os.geteuid() == 0 and not apart.exists()
    if made:
        apart.mkdir(mode=0o755)
    try:
        with Servers(folder) as servers:
            port = start_sshd(servers, server, folder)
            config = folder / "client"
            config.write_text(
                f"Host *\n  Port {port}\n  IdentityFile {folder / 'user'}\n  IdentitiesOnly yes\n"
                "  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n  LogLevel ERROR\n"
            )
            command = [client, "-F", str(config), "-o", "BatchMode=yes"]
            tried = subprocess.run([*command, "127.0.0.1", "true"], capture_output=True, text=True)
            if tried.returncode:
                pytest.skip(f"this user cannot be let in by SSH: {tried.stderr.strip()}")
            yield f"{client} -F {config}"
    finally:
        if made:
            apart.rmdir()


def start_sshd(servers, server, folder):
    """Start a server and return its port."""
    both = ("127.0.0.1", "127.0.0.2")
    for _ in range(5):
        (port,) = free_ports(1)
        config = folder / "server"
        config.write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\n"
            f"HostKey {folder / 'host'}\nAuthorizedKeysFile {folder / 'user.pub'}\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\n"
        )
        process = servers.start(server, "-D", "-e", "-f", config, name="sshd")
        wait_until(
            lambda p=process, n=port: p.poll() is not None or all(answers(a, n) for a in both), LONG
        )
        if process.poll() is None:
            return port
    raise AssertionError((folder / "sshd.log").read_text())


# Replaces `dismec` in the recipe: records whether the scheduler listens on other addresses too.
PROBE = """#!{python}
import socket, subprocess, sys
from pathlib import Path
port = int(sys.argv[-1].rpartition(":")[2])
try:
    socket.create_connection(("127.0.0.3", port), 30).close()
    found = "reached"
except ConnectionRefusedError:
    found = "refused"
Path("{note}").write_text(found)
sys.exit(subprocess.call([sys.executable, "-m", "dismec", *sys.argv[1:]]))
"""


def test_ssh_machines_train_and_are_left_clean(tmp_path, ssh, data, expected):
    (tmp_path / "machines.txt").write_text("127.0.0.1\n127.0.0.2\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "scratch").mkdir()
    probe = tmp_path / "bin" / "dismec"
    probe.write_text(PROBE.format(python=sys.executable, note=tmp_path / "note"))
    probe.chmod(0o755)
    python_path = os.environ.get("PYTHONPATH", "")
    env = environment(
        SSH=ssh,
        DASK=f"env PYTHONPATH={python_path} {' '.join(DASK)}",
        SCRATCH=tmp_path / "scratch",
    )
    env["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{env['PATH']}"
    ran = subprocess.run(
        ["sh", RECIPES / "ssh.sh", "machines.txt", "1", data, "-o", "model"],
        cwd=tmp_path,
        env=env,
        timeout=LONG,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert weight_files(tmp_path / "model") == expected
    assert (tmp_path / "note").read_text() == "refused"
    wait_until(lambda: not processes_of(tmp_path / "scratch"), LONG)
    assert not list((tmp_path / "scratch").glob("*.json"))
    assert not list((tmp_path / "scratch").rglob("*.xmc"))


@pytest.fixture
def slurm(tmp_path):
    """The environment of the test's own SLURM, with one node of two CPUs."""
    munged, controller, node, _ = needed("munged", "slurmctld", "slurmd", "sbatch")
    if os.geteuid():
        pytest.skip("a SLURM node needs the rights of root")
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    env = environment(SLURM_CONF=folder / "slurm.conf")
    with Servers(folder) as servers:
        munge = {name: folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
        command = [munged, "--foreground", "--force", f"--key-file={key}"]
        command += [f"--socket={munge['socket']}", f"--pid-file={munge['pid']}"]
        command += [f"--log-file={munge['log']}", f"--seed-file={munge['seed']}"]
        servers.start(*command, name="munged")
        wait_until(munge["socket"].exists, LONG)
        (folder / "slurm.conf").write_text(slurm_conf(folder, munge["socket"]))
        for name, server in (("slurmctld", controller), ("slurmd", node)):
            servers.start(server, "-D", name=name, env=env)

        def ready():
            asked = ["sinfo", "--noheader", "--format=%t"]
            answer = subprocess.run(asked, env=env, capture_output=True, text=True)
            return answer.stdout.strip() == "idle"

        try:
            wait_until(ready, 120)
        except AssertionError:
            logs = [
                (folder / f"{name}.log").read_text()[-2000:] for name in ("slurmctld", "slurmd")
            ]
            pytest.skip("SLURM does not start here: " + " … ".join(logs))
        yield env


def slurm_conf(folder, socket_path):
    name = socket.gethostname().partition(".")[0]
    ports = free_ports(2)
    return "\n".join(
        [
            "ClusterName=test",
            f"SlurmctldHost={name}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            f"SlurmdPort={ports[1]}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={socket_path}",
            f"StateSaveLocation={folder / 'state'}",
            f"SlurmdSpoolDir={folder / 'spool'}",
            f"SlurmctldPidFile={folder / 'slurmctld.pid'}",
            f"SlurmdPidFile={folder / 'slurmd.pid'}",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SlurmdParameters=config_overrides",
            "ReturnToService=2",
            "MpiDefault=none",
            f"NodeName=localhost NodeHostname={name} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN",
            "PartitionName=all Nodes=localhost Default=YES State=UP OverSubscribe=NO",
            "",
        ]
    )


def test_two_slurm_jobs_train_at_once_on_their_own_workers(tmp_path, slurm, data, expected):
    jobs = [
        subprocess.Popen(
            ["sbatch", "--wait", "--nodes=1", "--cpus-per-task=1", f"--output={name}.log",
             RECIPES / "slurm.sh", data, "-o", name],
            cwd=tmp_path,
            env=slurm,
        )
        for name in ("one", "other")
    ]  # fmt: skip
    try:
        codes = [job.wait(LONG) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("one", "other")]
    assert codes == [0, 0], "\n".join(logs)
    for name, log in zip(("one", "other"), logs, strict=True):
        assert weight_files(tmp_path / name) == expected
        assert "blocks on 1 worker" in log
    assert not list(tmp_path.glob(".dismec-*"))


def containers():
    cluster = yaml.safe_load((RECIPES / "kubernetes.yaml").read_text())
    assert (cluster["apiVersion"], cluster["kind"]) == ("kubernetes.dask.org/v1", "DaskCluster")
    spec = cluster["spec"]
    return cluster, *(spec[part]["spec"]["containers"][0] for part in ("scheduler", "worker"))


def test_the_kubernetes_scheduler_and_workers_have_their_own_resources():
    cluster, scheduler, worker = containers()
    assert scheduler["resources"] != worker["resources"]
    threads = worker["args"][worker["args"].index("--nthreads") + 1]
    assert worker["resources"]["requests"]["cpu"] == threads
    service = cluster["spec"]["scheduler"]["service"]
    assert service["selector"]["dask.org/cluster-name"] == cluster["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in scheduler["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    assert str(ports["tcp-comm"]) in scheduler["args"]
    mounted = {mount["mountPath"] for mount in worker["volumeMounts"]}
    assert worker["args"][worker["args"].index("--local-directory") + 1] in mounted


def test_the_commands_of_kubernetes_start_a_cluster_that_trains(tmp_path, data, expected):
    _, scheduler, worker = containers()
    port, health = free_ports(2)
    # Unlike in a pod, only local processes may reach the scheduler here.
    local = {
        "0.0.0.0": "127.0.0.1",
        "8786": str(port),
        ":8787": f"127.0.0.1:{health}",
        "$(DASK_WORKER_NAME)": "dismec-worker-1",
        "/scratch": str(tmp_path),
        "16": "1",
    }

    def command(container):
        assert container["command"][0] == "dask"
        return [*DASK, *container["command"][1:], *(local.get(a, a) for a in container["args"])]

    for container in (scheduler, worker):
        assert container["image"].endswith(f"/dismec:{version('dismec')}")
    address = f"tcp://127.0.0.1:{port}"
    with Servers(tmp_path) as servers:
        servers.start(*command(scheduler), name="scheduler", env=environment())
        probe = scheduler["readinessProbe"]["httpGet"]
        assert probe["port"] == "http-dashboard"
        wait_until(lambda: b"200" in fetched(health, probe["path"]), LONG)
        env = environment(DASK_SCHEDULER_ADDRESS=address)
        servers.start(*command(worker), name="worker", env=env)
        train(*random_problem(), tmp_path / "model", cluster=address, source=data)
    assert weight_files(tmp_path / "model") == expected


def fetched(port, path):
    """Return the first line of an HTTP server's answer, if there is one."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return connection.recv(1000).partition(b"\r\n")[0]
    return b""


def test_the_example_of_dask_arrays_runs(tmp_path):
    run = [sys.executable, RECIPES / "dask_arrays.py"]
    ran = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert ran.returncode == 0, ran.stderr
    (said,) = re.findall(r"# (\d+ labels.*)", (RECIPES / "dask_arrays.py").read_text())
    assert ran.stdout.strip() == said
