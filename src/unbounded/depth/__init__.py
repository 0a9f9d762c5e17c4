"""Variational families q(ℓ; λ) over the depth ℓ = 1, 2, … (Definition 1 of the paper)."""

from unbounded.depth.base import NO_MASS as NO_MASS
from unbounded.depth.base import DepthFamily as DepthFamily
from unbounded.depth.base import Numbers as Numbers
from unbounded.depth.base import check_unbounded as check_unbounded
from unbounded.depth.finite import FiniteDepth as FiniteDepth
from unbounded.depth.fixed import FixedDepth as FixedDepth
from unbounded.depth.normal import TruncatedNormal as TruncatedNormal
from unbounded.depth.quantiles import QuantileFamily as QuantileFamily
from unbounded.depth.rates import RateFamily as RateFamily
from unbounded.depth.rates import TruncatedConwayMaxwell as TruncatedConwayMaxwell
from unbounded.depth.rates import TruncatedPoisson as TruncatedPoisson
