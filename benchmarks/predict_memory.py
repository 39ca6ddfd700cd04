"""Peak memory of `dismec predict` for growing numbers of texts; exits with 1 if it grows with them.

The model and the texts are generated. From the smallest number of rows to the largest, the peak may
grow by half of what the labels and scores of the additional rows take. One batch of texts has about
50,000 short rows: start with more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from dismec import train_text
from dismec.cli.output import FORMATS
from dismec.data.synthetic import generate_text, write_text
from machine import print_heading

# VmHWM instead of ru_maxrss, which starts at the peak of the parent process.
PREDICT = """
import sys
from dismec.cli import main

main(["predict", *sys.argv[1:], "--threads", "1"], standalone_mode=False)
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) * 1024)
"""


def peak_bytes(model: Path, data: Path, form: str, k: int) -> int:
    out = data.with_name(f"out.{form}")
    options = ["-k", str(k), "--format", form, "-o", str(out), "--overwrite"]
    command = [sys.executable, "-c", PREDICT, str(model), str(data), *options]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    streamed = [form for form in FORMATS if form != "npz"]
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=streamed)
    parser.add_argument("--rows", nargs="+", type=int, default=[120_000, 240_000, 480_000])
    parser.add_argument("-k", type=int, default=20)
    args = parser.parse_args()

    print_heading()
    print(f"MB (10⁶ bytes) at the peak, {args.k} labels per row")
    print(f"{'format':8}", *(f"{rows:>9}" for rows in args.rows))
    bound = (args.rows[-1] - args.rows[0]) * args.k * 8 / 2
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train, test = generate_text(rows=1000, labels=100, features=2000, test_rows=1000)
        write_text(folder, train, test)
        train_text(folder / "train.jsonl", folder / "model")
        texts = [json.loads(line)["text"] for line in (folder / "test.jsonl").open()]
        lines = [json.dumps({"text": " ".join(text.split()[:5])}) + "\n" for text in texts]
        for form in args.formats:
            peaks = []
            for rows in args.rows:
                (folder / "data.jsonl").write_text("".join(lines[i % 1000] for i in range(rows)))
                data = folder / "data.jsonl"
                peaks.append(peak_bytes(folder / "model", data, form, args.k))
            good &= peaks[-1] - peaks[0] < bound
            print(f"{form:8}", *(f"{peak / 1e6:9.0f}" for peak in peaks), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
