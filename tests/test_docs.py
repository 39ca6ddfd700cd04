"""Commands and code in the documentation work."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from safetensors import safe_open

import dismec
from dismec import load_data, save_data
from dismec.data.corpus import read_texts
from dismec.data.text_format import TextFormat

ROOT = Path(__file__).resolve().parents[1]


def examples(name, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def run(command, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path}
    subprocess.run(["sh", "-ec", command], cwd=folder, check=True, env=env)


@pytest.mark.slow
def test_readme_commands_and_python_run(tmp_path):
    setup, texts, serve = examples("README.md", "sh")
    assert re.findall(r"^make (\w+)", setup, re.MULTILINE) == ["demo", "test"]
    run(texts, tmp_path)
    assert len((tmp_path / "predictions.jsonl").read_text().splitlines()) == 1000
    command = [sys.executable, "-m", *serve.split(), "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[-1]
            with urllib.request.urlopen(address) as page:
                assert b"<!doctype html>" in page.read().lower()
        finally:
            server.terminate()
    script = "\n".join(examples("README.md", "python"))
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        f"docs/{name}.md"
        for name in (
            "index",
            "howto/coming-from",
            "howto/comparing",
            "howto/hierarchy",
            "howto/inspecting",
            "howto/probabilities",
            "howto/rare-labels",
            "howto/tuning",
            "reference/predictions",
            "tutorial/embeddings",
            "tutorial/features",
            "tutorial/texts",
        )
    ],
)
def test_commands_of_a_page_run(tmp_path, page):
    for command in examples(page, "sh"):
        run(command, tmp_path)
    for script in examples(page, "python"):
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


@pytest.mark.slow
def test_pruning_commands_and_python_run(tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in examples("docs/howto/pruning.md", "sh"):
        subprocess.run(
            ["sh", "-ec", command], cwd=tmp_path, check=True, env={**os.environ, "PATH": path}
        )
    script = "\n".join(examples("docs/howto/pruning.md", "python"))
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


def test_code_in_the_python_howto_runs(tmp_path):
    script = "\n".join(examples("docs/howto/python.md", "python"))
    run = [sys.executable, "-c", script]
    found = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert f"print(model)  # {found.strip()}" in script


def test_text_files_of_the_documentation_are_read(tmp_path):
    page = "docs/reference/text-files.md"
    tags = TextFormat("title,body", "tags", "|")
    for language, name, fmt in (("json", "a", None), ("csv", "a.csv", tags), ("text", "a", None)):
        path = tmp_path / name
        path.write_text(examples(page, language)[0])
        (batch,) = read_texts(path, fmt or TextFormat())
        assert batch.labels[0] == ["grain", "wheat"]
        assert len(batch.texts) == 2
    (script,) = examples(page, "python")
    run = [sys.executable, "-c", script]
    found = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert found.strip() == script.partition("# ")[2].strip()


def test_serving_examples_run(tmp_path):
    setup, serve, *requests = examples("docs/howto/serving.md", "sh")
    requests += examples("docs/reference/http.md", "sh")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path}
    env.pop("DISMEC_TOKEN", None)
    subprocess.run(["sh", "-ec", setup], cwd=tmp_path, check=True, env=env)
    command = serve.replace("--port 8000", "--port 0").split()
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            address = server.stdout.readline().split()[-1]
            for request in requests if shutil.which("curl") else []:
                here = request.replace("http://127.0.0.1:8000", address)
                subprocess.run(["sh", "-ec", here], check=True, env=env)
            for script in examples("docs/reference/http.md", "python"):
                here = script.replace("http://127.0.0.1:8000", address)
                subprocess.run([sys.executable, "-c", here], check=True)
        finally:
            server.terminate()
    assert server.returncode == 0


@pytest.mark.cluster
@pytest.mark.slow
def test_cluster_prediction_commands_run(tmp_path):
    (batch,) = examples("docs/howto/cluster-prediction.md", "sh")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        # Without job control a shell has no numbers for background jobs.
        ["bash", "-emc", batch],
        cwd=tmp_path,
        check=True,
        env={**os.environ, "PATH": path},
        timeout=100,
    )
    rows = (tmp_path / "data" / "test.txt").read_text().splitlines()[1:]
    assert len((tmp_path / "predictions.txt").read_text().splitlines()) == len(rows)


def test_links_in_the_documentation_resolve():
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_examples_in_docstrings_run():
    package = ROOT / "src"
    modules = [path for path in package.rglob("*.py") if ">>> " in path.read_text()]
    assert len(modules) > 3
    for path in modules:
        name = ".".join(path.relative_to(package).with_suffix("").parts)
        result = doctest.testmod(importlib.import_module(name))
        assert result.failed == 0
        assert result.attempted


def test_set_up_commands_are_in_the_makefile():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "lint"} <= set(targets)


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs/reference/python.md").read_text()
    listed = re.findall(r"auto\w+:: dismec\.(\w+)", page)
    assert sorted(listed) == sorted(dismec.__all__)


def test_every_benchmark_is_described():
    page = (ROOT / "docs/contributing/benchmarks.md").read_text()
    assert set(re.findall(r"`(\w+\.py)`", page)) == {
        path.name for path in (ROOT / "benchmarks").glob("*.py")
    }


def test_messages_explained_in_troubleshooting_exist_in_the_code():
    page = (ROOT / "docs/howto/troubleshooting.md").read_text()
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    code = re.sub(r'"\s*f?"', "", code)  # joins literals on several lines
    quoted = re.findall(r"^\*\*(`.*`.*)\*\*$", page, re.MULTILINE)
    pieces = [
        piece.strip()
        for line in quoted
        for message in re.findall(r"`(.*?)`", line)
        for piece in re.split(r"…|\d+|'[^']*'", message)
    ]
    assert len(pieces) > 5
    for piece in pieces:
        if len(piece) > 8:
            assert piece in code, piece


def test_numeric_files_of_the_documentation_are_read(tmp_path):
    with_header, without = examples("docs/reference/numeric-files.md", "text")
    (tmp_path / "a.txt").write_text(with_header)
    data = load_data(tmp_path / "a.txt")
    assert (data.X.shape, data.Y.shape) == ((3, 5), (3, 4))
    assert data.Y.sum(axis=1).tolist() == [2, 1, 0]
    (tmp_path / "a.svm").write_text(without)
    assert load_data(tmp_path / "a.svm").X.shape == (2, 5)
    save_data(data, tmp_path / "a.xmc")
    with safe_open(tmp_path / "a.xmc", "np") as arrays:
        page = (ROOT / "docs/reference/numeric-files.md").read_text()
        assert all(f"`{name}`" in page for name in arrays.keys())  # noqa: SIM118  it is no dict
        assert all(f"`{name}`" in page for name in ("n_rows", "n_features", "n_labels"))
