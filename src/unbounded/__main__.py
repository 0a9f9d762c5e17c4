"""`python -m unbounded …`, and `torchrun -m unbounded fit …`."""

import sys

from unbounded.cli import main

if __name__ == "__main__":
    sys.exit(main())
