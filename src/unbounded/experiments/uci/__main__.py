"""`python -m unbounded.experiments.uci`, the same as `unbounded reproduce uci`."""

import sys

from unbounded.cli import main

sys.exit(main(["reproduce", "uci", *sys.argv[1:]]))
