"""`python -m unbounded.experiments.cifar10`, the same as `unbounded reproduce cifar10`."""

import sys

from unbounded.cli import main

sys.exit(main(["reproduce", "cifar10", *sys.argv[1:]]))
