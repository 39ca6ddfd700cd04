"""The live server under schemathesis, which knows only its OpenAPI document."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import random_problem
from dismec import train
from servers import serving

pytest.importorskip("schemathesis")  # not with the lowest versions of other packages

EXAMPLES = 15  # per operation, besides those at the limits of the schemas
# What schemas cannot express (unique ids, existing labels) is refused. tests/test_contract.py
# checks that every other request that the document allows is accepted.
LEFT_OUT = "positive_data_acceptance"
# Texts that are too long get 413, like bodies; by default schemathesis does not count that as a
# rejection.
CONFIG = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 404, 405, 413, 422]
"""


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemathesis")
    X, Y = random_problem()
    train(X, Y, folder / "numbers")
    return folder / "numbers"


def attack(server, folder, *options):
    """Return the report of schemathesis; fails if an answer violates the document."""
    address = f"http://127.0.0.1:{server.port}/openapi.json"
    settings = ["--max-examples", str(EXAMPLES), "--seed", "1", "--exclude-checks", LEFT_OUT]
    settings += ["--generation-deterministic", "--suppress-health-check", "all", "--no-color"]
    settings += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure"]
    settings += ["--request-timeout", "60", "--warnings", "off"]
    (folder / "schemathesis.toml").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", address, *settings, *options],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
    generated = re.search(r"(\d[\d,]*) generated, (\d[\d,]*) passed", done.stdout)
    assert generated, done.stdout[-3000:]
    return int(generated[1].replace(",", ""))


def families(server, headers=None):
    text = server.ask("GET", "/metrics", headers=headers)[2]
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.mark.slow
def test_a_numeric_server_conforms_to_its_document(numbers, tmp_path):
    with serving(tmp_path, numbers) as server:
        assert attack(server, tmp_path) > 100
        counted = families(server)["dismec_requests"]
        statuses = {sample.labels["status"] for sample in counted.samples}
        assert {"200", "400"} <= statuses
        assert not any(status.startswith("5") for status in statuses)
        assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_a_text_server_with_a_token_conforms_to_its_document(text_files, tmp_path):
    limits = "--max-characters", "200"
    with serving(tmp_path, text_files / "calibrated", *limits, token="secret") as server:
        assert attack(server, tmp_path, "-H", "Authorization: Bearer secret") > 100
        headers = {"Authorization": "Bearer secret"}
        statuses = {
            s.labels["status"] for s in families(server, headers)["dismec_requests"].samples
        }
        assert {"200", "400", "401"} <= statuses
        assert not any(status.startswith("5") for status in statuses)
        assert "Traceback" not in server.log.read_text()
