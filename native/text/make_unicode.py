"""Write unicode.hpp: tables of character properties, from the Unicode data of this Python.

    python native/text/make_unicode.py > native/text/unicode.hpp

The tables are part of the sources, so that a model turns a text into the same features wherever
it runs.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

# Name prefixes of the characters of scripts that are written without spaces between words.
SPACELESS = (
    "CJK UNIFIED IDEOGRAPH",
    "CJK COMPATIBILITY IDEOGRAPH",
    "IDEOGRAPHIC",
    "HIRAGANA",
    "HENTAIGANA",
    "KATAKANA",
    "HALFWIDTH KATAKANA",
    "THAI",
    "LAO",
    "KHMER",
    "MYANMAR",
)


def kind(code: int) -> str | None:
    """The role of a character in words."""
    character = chr(code)
    category = unicodedata.category(character)
    if category in ("Mn", "Mc"):
        return "Mark"
    if not character.isalnum() and character != "_":
        return None
    name = unicodedata.name(character, "")
    return "Spaceless" if name.startswith(SPACELESS) and category != "Nd" else "Letter"


def lower(code: int) -> int:
    """The lower case of a character, as a single character."""
    if code == 0x130:  # İ: terms.hpp writes the dot that Python adds
        return ord("i")
    if code == 0x3C2:  # ς: which sigma it is depends on the letters around it
        return 0x3C3
    (result,) = chr(code).lower()
    return ord(result)


def ranges(wanted: str) -> Iterator[tuple[int, ...]]:
    """The first and last character of each run of one kind."""
    codes = [code for code in range(0x110000) if kind(code) == wanted]
    breaks = [i for i, (a, b) in enumerate(pairwise(codes), 1) if b != a + 1]
    for begin, end in pairwise([0, *breaks, len(codes)]):
        yield codes[begin], codes[end - 1]


def lower_ranges() -> Iterator[tuple[int, ...]]:
    """First, last, step and offset of runs of capitals: adjacent, or every second character."""
    runs: list[list[int]] = []
    for code in range(0x80, 0x110000):
        add = lower(code) - code
        if add == 0:
            continue
        if kind(code) != "Letter":
            assert kind(code) is None, f"U+{code:04X}: terms.hpp looks for capitals among letters"
            continue
        if runs and add == runs[-1][3]:
            first, last, step, _ = runs[-1]
            if code - last == step or (first == last and code - last <= 2):
                runs[-1][1:3] = code, code - last
                continue
        runs.append([code, code, 1, add])
    yield from map(tuple, runs)


def table(kind_of_row: str, name: str, rows: Iterator[tuple[int, ...]]) -> None:
    """Print rows as an array, with as many per line as fit."""
    print(f"\ninline constexpr {kind_of_row} k{name}[] = {{")
    line = "   "
    for row in rows:
        numbers = [f"0x{n:X}" for n in row[:2]] + [str(n) for n in row[2:]]
        item = " {" + ", ".join(numbers) + "},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line + "\n};")


def main() -> None:
    """Print the header."""
    print(
        f"""\
// Made by make_unicode.py from Unicode {unicodedata.unidata_version}: do not edit.
// clang-format off
#pragma once

namespace dismec::text::unicode {{

inline constexpr char kVersion[] = "{unicodedata.unidata_version}";

struct Range {{
  char32_t first, last;
}};

/// Characters first, first + step, … last, and the offset to their lower case.
struct Capitals {{
  char32_t first, last;
  int step, add;
}};"""
    )
    for name in ("Letter", "Mark", "Spaceless"):
        table("Range", f"{name}s" if name != "Spaceless" else name, ranges(name))
    table("Capitals", "Capitals", lower_ranges())
    print("\n}  // namespace dismec::text::unicode")


if __name__ == "__main__":
    sys.exit(main())
