"""Likelihoods p(y; Ω_ℓ(x)): what a head's output says of the response."""

from unbounded.likelihoods.base import Likelihood as Likelihood
from unbounded.likelihoods.base import Prediction as Prediction
from unbounded.likelihoods.bernoulli import Bernoulli as Bernoulli
from unbounded.likelihoods.categorical import Categorical as Categorical
from unbounded.likelihoods.categorical import ClassPrediction as ClassPrediction
from unbounded.likelihoods.gaussian import BalancedGaussian as BalancedGaussian
from unbounded.likelihoods.gaussian import FixedNoise as FixedNoise
from unbounded.likelihoods.gaussian import Gaussian as Gaussian
from unbounded.likelihoods.gaussian import GaussianPrediction as GaussianPrediction
from unbounded.likelihoods.gaussian import InputNoise as InputNoise
from unbounded.likelihoods.gaussian import LearntNoise as LearntNoise
from unbounded.likelihoods.gaussian import ScaledInputNoise as ScaledInputNoise
from unbounded.likelihoods.labels import LabelPrediction as LabelPrediction
from unbounded.likelihoods.labels import MultiLabel as MultiLabel
from unbounded.likelihoods.members import Members as Members
from unbounded.likelihoods.smoothed import SmoothedCategorical as SmoothedCategorical
from unbounded.likelihoods.tokens import TokenPrediction as TokenPrediction
from unbounded.likelihoods.tokens import Tokens as Tokens
