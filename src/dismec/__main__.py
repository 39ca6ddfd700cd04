"""``python -m dismec``."""

from dismec.cli import main

main(prog_name="dismec")
