"""Variational families q(ℓ; λ) over the depth ℓ = 1, 2, … (Definition 1 of the paper)."""

from unbounded.depth.base import DepthFamily as DepthFamily
from unbounded.depth.conway_maxwell import TruncatedConwayMaxwell as TruncatedConwayMaxwell
from unbounded.depth.finite import FiniteDepth as FiniteDepth
from unbounded.depth.fixed import FixedDepth as FixedDepth
from unbounded.depth.rates import RateFamily as RateFamily
from unbounded.depth.truncated_poisson import TruncatedPoisson as TruncatedPoisson
