"""The public API documents what it takes, what it returns and how it is used."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from pathlib import Path

import pytest

import dismec

# Dask clients are untyped, because Dask need not be installed.
UNTYPED = {"cluster"}
PACKAGE = Path(dismec.__file__).parent


def owned(member) -> bool:
    """Whether a member is defined by this package, not by Python or scikit-learn."""
    return (getattr(member, "__module__", "") or "").startswith("dismec")


def methods(kind):
    """Return public methods and properties of a class by name, including inherited ones."""
    for name, member in inspect.getmembers_static(kind):
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        if isinstance(member, property):
            member = member.fget
        if isinstance(member, functools.cached_property):
            member = member.func
        if inspect.isfunction(member) and owned(member):
            yield f"{kind.__name__}.{name}", member


PUBLIC = {name: getattr(dismec, name) for name in dismec.__all__}
KINDS = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
METHODS = {
    name: method
    for kind in KINDS.values()
    if not issubclass(kind, Exception)
    for name, method in methods(kind)
}
CALLABLES = {**FUNCTIONS, **METHODS}


def properties() -> set[str]:
    found = set()
    for kind in KINDS.values():
        for name, member in inspect.getmembers_static(kind):
            if isinstance(member, property | functools.cached_property):
                found.add(f"{kind.__name__}.{name}")
    return found


PROPERTIES = properties()


def test_every_public_name_is_checked():
    assert len(FUNCTIONS) + len(KINDS) == len(PUBLIC)
    assert {"Model.predict_topk", "Model.save", "DiSMECClassifier.fit", "Model.weights"} <= set(
        METHODS
    )
    assert len(METHODS) > 60


@pytest.mark.parametrize("name", CALLABLES)
def test_parameters_have_types(name):
    signature = inspect.signature(CALLABLES[name])
    for parameter in signature.parameters.values():
        if parameter.name in {"self", "cls", *UNTYPED}:
            continue
        assert parameter.annotation is not inspect.Parameter.empty, parameter.name
        kind = str(parameter.annotation)
        alone = re.sub(r"(dict|Mapping)\[str, Any\]", "", kind)  # any JSON value
        assert not re.search(r"\bAny\b", alone), f"{parameter.name}: {kind}"
    assert signature.return_annotation is not inspect.Signature.empty


def test_no_public_type_is_any():
    for module in ("data/types.py", "model/allowed.py"):
        text = (PACKAGE / module).read_text()
        aliases = re.findall(r"^\w+: TypeAlias = (.*)$", text, flags=re.MULTILINE)
        assert aliases
        assert not any("Any" in alias for alias in aliases)


@pytest.mark.parametrize("name", CALLABLES)
def test_docstrings_say_what_is_taken_and_returned(name):
    text = inspect.getdoc(CALLABLES[name]) or ""
    assert text, "no docstring"
    assert re.match(r"[A-Z`].*\.$", text.splitlines()[0]), "the first line is a sentence"
    if name in PROPERTIES:
        return
    signature = inspect.signature(CALLABLES[name])
    if signature.return_annotation not in ("None", None):
        assert "Returns\n-------\n" in text
    taken = [p for p in signature.parameters if p not in ("self", "cls")]
    if taken:
        assert "Parameters\n----------\n" in text
        listed = text.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
        described = re.findall(r"^(\w[\w, ]*?)(?: :.*)?$", listed, flags=re.MULTILINE)
        assert [p for p in taken if p not in {w for d in described for w in d.split(", ")}] == []


@pytest.mark.parametrize("name", [*FUNCTIONS, *KINDS])
def test_functions_and_classes_have_examples(name):
    thing = PUBLIC[name]
    if inspect.isclass(thing) and issubclass(thing, Exception):
        assert inspect.getdoc(thing)
    elif not (dataclasses.is_dataclass(thing) and name == "Explanation"):
        assert ">>> " in (inspect.getdoc(thing) or "")


def test_the_documentation_imports_from_the_package_itself():
    names = "|".join(name for name in PUBLIC)
    long = re.compile(rf"from dismec\.[\w.]+ import .*\b({names})\b|`dismec(?:\.\w+)+\.({names})\b")
    for page in (PACKAGE.parents[1] / "docs").rglob("*.md"):
        found = [m.group() for m in long.finditer(page.read_text())]
        assert found == [], f"{page.name}: {found}"
