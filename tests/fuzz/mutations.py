"""Valid inputs → damaged ones, depending only on the random generator and the input."""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import re
from contextlib import suppress
from random import Random

import numpy as np

NUMBERS = [
    *(0, 1, -1, 2, 7, 255, 256, 65535, 65536, 2**24, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1),
    *(2**63, 2**64, -(2**70), 10**17, 10**18, 10**19, 10**400),
]
WORDS = [
    *(b"", b" ", b"\n", b"\r\n", b"\0", b"\t", b",", b":", b'"', b"\\", b"{", b"}", b"[", b"]"),
    *(b"nan", b"inf", b"-inf", b"1e999", b"1e-999", b"0x10", b"+1", b"-0", b"1.5", b"null"),
    *(b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\\ud800"),
    *(b"__label__", b"labels", b"text", b"../", b"\n" * 50, b" " * 50, b"[" * 60, b'"' * 3),
]
ODD = [
    *(None, True, False, -1, 0, 1, 1.5, 1e308, float("nan"), float("inf"), 10**400, 2**31, 2**63),
    *("", "\0", "\ud800", "x" * 5000, "../x", "a/b", "nan", [], {}, [1], [[]], {"a": 1}),
]
LARGEST = 1 << 18  # bytes of a mutated file
_NUMBER = re.compile(rb"-?\d+(\.\d+)?")


def mutate_bytes(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Change a few bytes; `others` are inputs of the same kind to take pieces from."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        _change(rng, changed, others)
    return bytes(changed[:LARGEST])


def _change(rng: Random, data: bytearray, others: list[bytes]) -> None:
    begin = rng.randrange(len(data) + 1)
    end = min(len(data), begin + rng.choice((1, 2, 4, 8, 30, 300)))
    kind = rng.randrange(10)
    if kind == 0 and data:
        data[begin % len(data)] ^= 1 << rng.randrange(8)
    elif kind == 1 and data:
        data[begin % len(data)] = rng.choice((0, 1, 9, 10, 32, 127, 128, 255))
    elif kind == 2:
        del data[begin:end]
    elif kind == 3:
        data[begin:begin] = data[begin:end] * rng.choice((1, 1, 3, 50))
    elif kind == 4:
        data[begin:begin] = rng.choice(WORDS)
    elif kind == 5:
        data[begin:end] = rng.choice(WORDS)
    elif kind == 6:
        del data[begin:]
    elif kind in (7, 8):
        found = list(_NUMBER.finditer(data))
        if found:
            place = rng.choice(found)
            data[place.start() : place.end()] = str(rng.choice(NUMBERS)).encode()
    else:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        data[begin:end] = other[start : start + rng.choice((4, 40, 400))]


def mutate_json(rng: Random, value: object) -> object:
    """Change, remove or duplicate a few values of a parsed document."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            return copy.deepcopy(rng.choice(ODD))
        folder, key = rng.choice(places)
        kind = rng.randrange(8)
        if kind == 0:
            del folder[key]
        elif kind == 1:
            other, name = rng.choice(places)
            folder[key] = copy.deepcopy(other[name])
        elif kind == 2 and isinstance(folder, list):
            folder.insert(key, copy.deepcopy(folder[key]))
        elif kind == 3 and isinstance(folder[key], str) and folder[key]:
            at = rng.randrange(len(folder[key]))
            folder[key] = folder[key][:at] + rng.choice("0/\0é.-") + folder[key][at + 1 :]
        elif kind in (4, 5) and isinstance(folder[key], int | float):
            folder[key] = rng.choice((*NUMBERS, folder[key] + 1, folder[key] - 1, -folder[key]))
        else:
            folder[key] = copy.deepcopy(rng.choice(ODD))  # it may be changed later
    return value


def _places(value):
    """Yield every (list or object, index or key) of a document."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in list(parts):
        yield value, key
        if isinstance(part, dict | list):
            yield from _places(part)


def json_bytes(value: object) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


_DTYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U32": "<u4", "U16": "<u2"}


def mutate_container(rng: Random, data: bytes) -> bytes:
    """Change the header of a safetensors file, or numbers in one of its arrays."""
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    if rng.random() < 0.3:
        text = json_bytes(mutate_json(rng, header))
        if rng.random() < 0.5:
            text = mutate_bytes(rng, text, [text])
        return len(text).to_bytes(8, "little") + text + body
    names = [name for name in header if name != "__metadata__" and header[name]["shape"] != [0]]
    if rng.random() < 0.1 or not names:
        return mutate_bytes(rng, data, [data])
    entry = header[rng.choice(names)]
    begin, end = entry["data_offsets"]
    numbers = np.frombuffer(bytes(body[begin:end]), _DTYPES.get(entry["dtype"], "u1")).copy()
    if len(numbers):
        _change_numbers(rng, numbers)
        body[begin:end] = numbers.tobytes()
    return data[: 8 + length] + body


def _change_numbers(rng: Random, numbers: np.ndarray) -> None:
    begin = rng.randrange(len(numbers))
    end = begin + rng.choice((1, 1, 2, 10, len(numbers)))
    if numbers.dtype.kind == "f":
        odd = rng.choice((0.0, -1.0, 1e30, -1e-40, float("nan"), float("inf"), 3.0))
        with np.errstate(over="ignore"):
            numbers[begin:end] = odd
        return
    info = np.iinfo(numbers.dtype)
    kind = rng.randrange(4)
    if kind == 0:
        numbers[begin:end] = rng.choice((0, 1, info.max, info.min, info.max // 2))
    elif kind == 1:
        numbers[begin:end] += numbers.dtype.type(1)
    elif kind == 2:
        numbers[begin:end] = numbers[begin:end][::-1].copy()
    else:
        numbers[begin] ^= numbers.dtype.type(1) << numbers.dtype.type(rng.randrange(info.bits - 1))


def mutate_model(rng: Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the changed files of a model, mostly with matching checksums."""
    changed: dict[str, bytes] = {}
    names = [name for name in files if name != ".lock"]
    for _ in range(rng.choice((1, 1, 1, 2))):
        name = rng.choice(names) if rng.random() < 0.6 else "manifest.json"
        data = changed.get(name, files[name])
        if name == "manifest.json":
            changed[name] = _mutate_manifest(rng, data, files[name])
        elif name.endswith(".journal"):
            changed[name] = _mutate_journal(rng, data)
        else:
            changed[name] = mutate_container(rng, data) if data == files[name] else data
    if rng.random() < 0.8:
        _set_right(changed, files)
    return changed


def _mutate_manifest(rng: Random, data: bytes, whole: bytes) -> bytes:
    if rng.random() < 0.15:
        return mutate_bytes(rng, data, [data])
    try:
        content = json.loads(data)
    except ValueError:
        content = json.loads(whole)
    if isinstance(content, dict):
        content.pop("checksum", None)
    return json_bytes(mutate_json(rng, content))


def _mutate_journal(rng: Random, data: bytes) -> bytes:
    if rng.random() < 0.3:
        return mutate_bytes(rng, data, [data])
    lines = [line.partition(b" ")[2] for line in data.splitlines()]
    for place in range(len(lines)):
        if rng.random() < 0.5:
            with suppress(ValueError):  # its bytes may have been changed before
                lines[place] = json_bytes(mutate_json(rng, json.loads(lines[place])))
    sums = [hashlib.sha256(line).hexdigest()[:16].encode() for line in lines]
    return b"".join(b"%s %s\n" % pair for pair in zip(sums, lines, strict=True))


def _set_right(changed: dict[str, bytes], files: dict[str, bytes]) -> None:
    """Update the sizes and checksums in the manifest, if it is still one."""
    try:
        manifest = json.loads(changed.get("manifest.json", files["manifest.json"]))
    except ValueError:
        return
    if not isinstance(manifest, dict):
        return
    manifest.pop("checksum", None)
    for folder, _ in list(_places(manifest)):
        name = folder.get("file") if isinstance(folder, dict) else None
        if isinstance(name, str) and name in changed:
            folder["sha256"] = hashlib.sha256(changed[name]).hexdigest()
            if "bytes" in folder:
                folder["bytes"] = len(changed[name])
    changed["manifest.json"] = json_bytes(manifest)


def gzipped(rng: Random, data: bytes) -> bytes:
    """Compress data with gzip, and sometimes damage the result."""
    data = gzip.compress(data, 1, mtime=0)
    return mutate_bytes(rng, data, [data]) if rng.random() < 0.3 else data
