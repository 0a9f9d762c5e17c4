"""`python -m unbounded.cli …`."""

import sys

from unbounded.cli import main

sys.exit(main())
