"""The package's layers: imports go one way, packages have one door, modules stay small.

``docs/contributing/architecture.md`` describes them; this checks it against the sources.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import warnings
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dismec

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "dismec"

# Lowest first: a module may import from its own layer and from layers before it.
LAYERS = (
    "errors",
    "cpu",
    "data",
    "features",
    "measure",
    "solve",
    "model",
    "cluster",
    "training",
    "report",
    "compare",
    "serve",
    "estimators",
    "cli",
    "__main__",
)
# Where a third-party package may be imported; numpy and scipy may be imported anywhere.
DOORS: dict[str, str | tuple[str, ...]] = {
    "sklearn": ("estimators", "compare.worker"),
    "joblib": "compare.worker",
    "pecos": "compare.worker",
    "napkinxc": "compare.worker",
    "omikuji": "compare.worker",
    "liblinear": "compare.worker",
    "fasttext": "compare.worker",
    "click": "cli",
    "rich": "cli.console",
    "distributed": "cluster.client",
    "matplotlib": "report.figures",
    "pyarrow": "data.arrow",
    "prometheus_client": "serve.prometheus",
    "starlette": "serve.application",
    "uvicorn": ("serve.server", "serve.connections"),
    "httptools": "serve.connections",
    "sentence_transformers": "features.encoder",
    "huggingface_hub": "features.encoder",
}
# The package as a whole, and one module: a longer one gives a warning.
MOST_MODULES, MOST_PACKAGE_LINES, LONGEST_CHAIN = 160, 30_000, 18
MOST_LINES, MOST_CLUSTER_LINES = 600, 1600
NATIVE = [p for p in (ROOT / "native").rglob("*") if p.suffix in (".hpp", ".cpp")]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = {name: ast.parse(path.read_text()) for name, path in SOURCES.items() if name}


@cache
def imports(name: str) -> set[str]:
    """Return everything that a module imports: at the top, in functions, for type checking."""
    found = set()
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


# What `import dismec` offers is imported when it is first used, and counts as imported.
PUBLIC = {name for name in dismec._HOMES if name in MODULES}


@cache
def own_imports(name: str) -> set[str]:
    """Return the modules of this package among these."""
    found = set()
    for target in imports(name):
        if not target.startswith("dismec."):
            continue
        path = target.removeprefix("dismec.")
        if path.startswith("_native") or path in dismec.__all__:
            continue
        while path not in MODULES:
            path, _, last = path.rpartition(".")
            assert last, f"{name}: imports {target}, and there is no such module"
        found.add(path)
    return found - {name}


def layer(name: str) -> str:
    return name.partition(".")[0]


def test_every_module_is_in_a_layer():
    assert {layer(name) for name in MODULES} == set(LAYERS)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_one_way(name):
    for other in own_imports(name):
        assert LAYERS.index(layer(other)) <= LAYERS.index(layer(name)), f"{name} imports {other}"


def test_modules_have_no_import_cycles():
    graph = {name: set(own_imports(name)) for name in MODULES} | {"dismec": set(PUBLIC)}
    for name in MODULES:
        if any(i == "dismec" or i.removeprefix("dismec.") in dismec.__all__ for i in imports(name)):
            graph[name].add("dismec")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"an import cycle: {' ← '.join(error.args[1])}")


def test_cycles_and_imports_against_the_order_are_detected():
    """The tests above can fail: the graph includes lazy imports and those for type checking."""
    assert "cluster.solve_tasks" in own_imports("training.execute")  # lazy
    assert "features.vocabulary" in own_imports("training.train")  # for type checking


@pytest.mark.parametrize("package", DOORS)
def test_a_package_has_one_door(package):
    found = {n for n in MODULES if any(i.split(".")[0] == package for i in imports(n))}
    doors = DOORS[package]
    doors = (doors,) if isinstance(doors, str) else doors
    assert found, f"{package} is imported nowhere"
    assert {n for n in found if not any(f"{n}.".startswith(f"{door}.") for door in doors)} == set()


def test_every_third_party_package_has_a_door():
    known = {*sys.stdlib_module_names, *DOORS, "dismec", "numpy", "scipy"}
    assert {i.split(".")[0] for name in MODULES for i in imports(name)} <= known


@pytest.mark.parametrize("name", [n for n in MODULES if (PACKAGE / n).is_dir()])
def test_a_sub_package_says_what_it_is_and_which_layers_it_uses(name):
    text = " ".join((ast.get_docstring(MODULES[name]) or "").split())
    assert " In: " in text
    assert " Out: " in text
    stated = set(re.findall(r"`(\w+)`", text.partition("May use: ")[2]))
    used = {
        layer(other) for module in MODULES if layer(module) == name for other in own_imports(module)
    }
    assert used - {name, "errors", "cpu"} <= stated
    assert all(LAYERS.index(other) < LAYERS.index(name) for other in stated)


def test_no_private_name_is_imported_from_another_module():
    taken = {
        f"{name}: {target}"
        for name in MODULES
        for target in imports(name)
        if target.startswith("dismec.") and target.rpartition(".")[2].startswith("_")
    }
    assert {entry for entry in taken if "_native" not in entry} == set()


def test_no_two_types_share_a_name():
    homes = defaultdict(list)
    for name, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def raised_texts(tree: ast.AST) -> list[str]:
    """Return the pieces of text in the exceptions that a module raises."""
    raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    found = [constant for node in raised for constant in ast.walk(node)]
    return [c.value for c in found if isinstance(c, ast.Constant) and isinstance(c.value, str)]


def test_no_error_of_the_library_names_a_flag():
    """Errors carry the name of a Python parameter, which the command line turns into a flag."""
    flag = re.compile(r"(?<![\w-])--[a-z]")
    found = {
        name: [text for text in raised_texts(tree) if flag.search(text)]
        for name, tree in MODULES.items()
    }
    assert {name for name, texts in found.items() if texts and layer(name) != "cli"} == set()
    assert found["cli.options"], "the search finds flags where there are some"


@pytest.mark.filterwarnings("always:.* lines, more than:UserWarning")  # a warning, not an error
def test_long_modules_give_warnings():
    for path in (*SOURCES.values(), *NATIVE):
        n_lines = len(path.read_text().splitlines())
        if n_lines > MOST_LINES:
            name = path.relative_to(ROOT)
            warnings.warn(f"{name}: {n_lines} lines, more than {MOST_LINES}", stacklevel=1)


def test_no_two_modules_share_a_name():
    names = [path.stem for path in SOURCES.values() if path.stem != "__init__"]
    assert len(names) == len(set(names))


def test_the_package_stays_small():
    lines = {name: len(path.read_text().splitlines()) for name, path in SOURCES.items()}
    assert len(lines) <= MOST_MODULES
    assert sum(lines.values()) <= MOST_PACKAGE_LINES
    in_cluster = sum(n for name, n in lines.items() if layer(name) == "cluster")
    assert in_cluster <= MOST_CLUSTER_LINES


def test_chains_of_imports_stay_short():
    longest: dict[str, list[str]] = {}
    for name in TopologicalSorter({name: own_imports(name) for name in MODULES}).static_order():
        below = max((longest[other] for other in own_imports(name)), key=len, default=[])
        longest[name] = [name, *below]
    chain = max(longest.values(), key=len)
    assert len(chain) <= LONGEST_CHAIN, f"{len(chain)} modules: {' → '.join(chain)}"


@pytest.mark.parametrize("path", NATIVE, ids=lambda p: str(p.relative_to(ROOT / "native")))
def test_native_code_includes_its_own_folder_and_what_all_share(path):
    text = path.read_text()
    own = path.relative_to(ROOT / "native").parts[0] if path.parent.name != "native" else ""
    # From C there is no Python to bring rows from one folder to the next.
    folders = ("", own, "data", "score") if own == "c" else ("", own)
    for included in re.findall(r'#include "([^"]+)"', text):
        home, _, name = included.rpartition("/")
        assert home in folders, f"{included} is in another folder"
        assert name != "bindings.hpp" or path.suffix == ".cpp", "only bindings know of Python"
    if own and path.suffix == ".hpp":
        assert f"namespace dismec::{own}" in text


def test_the_document_lists_the_layers_in_their_order():
    text = (ROOT / "docs" / "contributing" / "architecture.md").read_text()
    drawing = text.partition("```")[2].partition("```")[0]
    drawn = re.findall(r"^ *(\w+)(?:/|\.py)", drawing, flags=re.M)
    assert drawn == [name for name in LAYERS if name != "__main__"]


def test_the_document_says_where_third_party_packages_are_imported():
    text = (ROOT / "docs" / "contributing" / "architecture.md").read_text()
    stated = dict(re.findall(r"^\| (\S+) \| (`.+`) \|$", text, flags=re.M))
    other_names = {
        "sklearn": "scikit-learn",
        "distributed": "Dask",
        "sentence_transformers": "sentence-transformers",
    }
    expected = {}
    for package, doors in DOORS.items():
        paths = [door.replace(".", "/") for door in ([doors] if isinstance(doors, str) else doors)]
        files = [f"`{path}{'.py' if '/' in path else '/'}`" for path in paths]
        files = [
            file for file in files if file != "`compare/worker.py`"
        ]  # described below the table
        if files:
            expected[other_names.get(package, package)] = " and ".join(files)
    assert stated == expected


def test_modules_named_in_the_document_exist():
    text = (ROOT / "docs" / "contributing" / "architecture.md").read_text()
    for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.\w+)`", text):
        places = (ROOT / path, PACKAGE / path)
        assert any(place.exists() for place in places), f"{path} is not there"


@pytest.mark.parametrize(
    "path",
    [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "tests").glob("*.py")],
    ids=lambda p: p.name,
)
def test_imports_of_scripts_exist(path):
    """Benchmarks run by hand and some imports are lazy: this finds names that have moved."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dismec"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def test_public_names_are_exactly_these():
    assert dismec.__all__ == [
        "ClusterError",
        "DataError",
        "Dataset",
        "DiSMECClassifier",
        "DiSMECTextClassifier",
        "DismecError",
        "Explanation",
        "Hierarchy",
        "Model",
        "ModelError",
        "TextFormat",
        "TextParams",
        "TextRows",
        "TrainingParams",
        "add_labels",
        "by_level",
        "describe_data",
        "describe_labels",
        "evaluate",
        "generate",
        "highlights",
        "label_scorer",
        "load_data",
        "merge_models",
        "open_model",
        "propensities",
        "pruning_curve",
        "read_frame",
        "read_texts",
        "remove_labels",
        "save_data",
        "train",
        "train_text",
        "update_labels",
    ]
    assert dir(dismec) == sorted([*dismec.__all__, "__version__"])
    for name in dismec.__all__:
        assert getattr(dismec, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dismec.nothing


def test_a_sub_package_does_not_hide_a_public_function():
    """Importing a sub-package sets it as an attribute of the package: no two share a name."""
    assert not {layer(name) for name in MODULES} & set(dismec.__all__)


@pytest.mark.parametrize("command", ["", "train --help", "predict --help", "serve --help"])
def test_help_imports_little(command):
    """Nothing heavy, and few modules beyond those of the command line itself."""
    code = (
        "import sys, click, dataclasses, json, pathlib, tempfile\n"
        "before = len(sys.modules)\n"
        "from dismec.cli import main\n"
        f"main({command.split() or ['--help']}, standalone_mode=False)\n"
        f"print([m for m in {['numpy', 'scipy', *DOORS]} if m in sys.modules and m != 'click'])\n"
        "print(len(sys.modules) - before)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, n_modules = out.stdout.splitlines()[-2:]
    assert heavy == "[]"
    assert int(n_modules) <= 40
