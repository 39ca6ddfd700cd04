"""Names with control characters are shown on terminals, in logs and pages, but never executed."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys

import pytest

from conftest import random_problem
from dismec import Dataset, save_data, train
from dismec.data.printable import html_text, printable
from test_architecture import MODULES
from test_cli import run

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
ODD = "a\x1b]0;title\x07\x08\x7f\x9b31m\u2028\u202e b"


def test_every_character_that_a_terminal_acts_on_is_shown():
    every = "".join(map(chr, range(0x2100)))
    shown = printable(every)
    assert not CONTROLS.search(shown)
    assert "\t\n" in shown
    assert json.loads(f'"{printable(every[:32], one_line=True)}"') == every[:32]
    assert printable(shown) == shown
    assert printable("Grüße, שלום, 東京 🎉 \u200d") == "Grüße, שלום, 東京 🎉 \u200d"


def test_json_keeps_its_meaning():
    text = json.dumps({"name": ODD}, ensure_ascii=False)
    assert CONTROLS.search(text)
    assert json.loads(printable(text)) == {"name": ODD}


def test_html_shows_what_it_cannot_hold():
    assert html_text('<b a="\x1b">') == "&lt;b a=&quot;\\u001b&quot;&gt;"


def test_html_is_escaped_in_one_place():
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                imported = [node.module]
            assert "html" not in imported or name == "data.printable", name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and data with control characters in label and file names."""
    folder = tmp_path_factory.mktemp("odd") / "folder \x1b[31m"
    folder.mkdir()
    X, Y = random_problem(labels=6)
    names = [f"{ODD}{i}" for i in range(6)]
    train(X, Y, folder / "model", names=names)
    save_data(Dataset(X, Y), folder / "data.txt")
    (folder / "names.txt").write_text("\n".join(f"a\x1b[31m\x9b{i}" for i in range(6)))
    lines = [{"text": f"apple{chr(27)}[31m pear number{i}", "labels": [ODD]} for i in range(9)]
    lines += [{"text": f"vessel cargo number{i}", "labels": ["other"]} for i in range(9)]
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "predict {0}/model {0}/data.txt",
        "predict {0}/model {0}/data.txt --format csv",
        "predict {0}/model {0}/data.txt --json",
        "explain {0}/model 1:1 --json",
        "explain {0}/model 1:1",
        "inspect {0}/model",
        "inspect {0}/data.txt --label-names {0}/names.txt",
        "evaluate {0}/model {0}/data.txt",
        "explain {0}/model 1:1 --label no\x1b[31msuch",
        "train {0}/texts.jsonl -o {0}/new --overwrite",
        "predict {0}/nothing {0}/data.txt",
        "predict {0}/model {0}/\x9bnothing",
    ],
)
def test_no_command_prints_control_characters(folder, command):
    arguments = [part.format(folder) for part in command.split(" ")]
    arguments = [part for part in arguments if part]
    result = run(*arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    text = result.output
    assert text
    assert not CONTROLS.search(text), text


def test_colors_still_reach_a_terminal(folder):
    """Only foreign text is filtered: a table may be colored."""
    code = (
        "import sys; from dismec.cli import main\n"
        "import dismec.cli.console as console; from rich.console import Console\n"
        "console._console = lambda **_: Console(force_terminal=True, file="
        "console.unfiltered(sys.stdout))\n"
        "main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "explain", folder / "model", "1:1"]
    text = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    assert re.search("\x1b\\[[0-9;]+m", text)
    assert "\x1b]0;title" not in text
    assert "\\u001b]0;title" in text
