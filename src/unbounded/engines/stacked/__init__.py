"""Many models of one architecture as one batched computation."""

from unbounded.engines.stacked.engine import OutgrownError as OutgrownError
from unbounded.engines.stacked.engine import Stacked as Stacked
