"""Neural networks whose depth is inferred from the data and has no upper limit.

An implementation of "Variational Inference for Infinitely Deep Neural Networks" (Nazaret and
Blei, ICML 2022), and more.
"""

from typing import TYPE_CHECKING

from unbounded.depth import DepthFamily as DepthFamily
from unbounded.depth import FiniteDepth as FiniteDepth
from unbounded.depth import FixedDepth as FixedDepth
from unbounded.depth import TruncatedConwayMaxwell as TruncatedConwayMaxwell
from unbounded.depth import TruncatedNormal as TruncatedNormal
from unbounded.depth import TruncatedPoisson as TruncatedPoisson
from unbounded.elbo import ElboTerms as ElboTerms
from unbounded.layers import CustomLayers as CustomLayers
from unbounded.layers import Dense as Dense
from unbounded.layers import Layers as Layers
from unbounded.layers import PreNormDense as PreNormDense
from unbounded.layers import ResidualConv as ResidualConv
from unbounded.layers import ResidualDense as ResidualDense
from unbounded.layers import TableDense as TableDense
from unbounded.layers import TransformerLayers as TransformerLayers
from unbounded.layers import TrunkDense as TrunkDense
from unbounded.likelihoods import Bernoulli as Bernoulli
from unbounded.likelihoods import Categorical as Categorical
from unbounded.likelihoods import Gaussian as Gaussian
from unbounded.likelihoods import Likelihood as Likelihood
from unbounded.likelihoods import Members as Members
from unbounded.likelihoods import MultiLabel as MultiLabel
from unbounded.likelihoods import Tokens as Tokens
from unbounded.model import UDN as UDN
from unbounded.predictive import predict as predict
from unbounded.priors import GaussianWeights as GaussianWeights
from unbounded.priors import GeometricDepth as GeometricDepth
from unbounded.priors import PoissonDepth as PoissonDepth
from unbounded.priors import UniformDepth as UniformDepth

if TYPE_CHECKING:
    from unbounded.estimators import UDNClassifier as UDNClassifier
    from unbounded.estimators import UDNRegressor as UDNRegressor
    from unbounded.exits import EarlyExit as EarlyExit
    from unbounded.exits import EarlyPrediction as EarlyPrediction
    from unbounded.exporting import ExportError as ExportError
    from unbounded.exporting import export as export
    from unbounded.exporting import load_folder as load_folder
    from unbounded.exporting import save_folder as save_folder
    from unbounded.files import FileError as FileError
    from unbounded.files import load as load
    from unbounded.files import save as save
    from unbounded.generation import Generated as Generated
    from unbounded.generation import generate as generate
    from unbounded.tables import BatchPredictor as BatchPredictor
    from unbounded.tables import TableModel as TableModel
    from unbounded.training import DiskData as DiskData
    from unbounded.training import HeldOutAscent as HeldOutAscent
    from unbounded.training import Stream as Stream
    from unbounded.training import make_optimizer as make_optimizer
    from unbounded.training import step as step
    from unbounded.training.fit import fit as fit

__version__ = "0.1.0"

# Imported when they are first asked for: what needs more packages, such as scikit-learn, and
# training, two thirds of the library, which nobody needs who only predicts.
_LAZY = {
    "EarlyExit": "unbounded.exits",
    "EarlyPrediction": "unbounded.exits",
    "FileError": "unbounded.files",
    "load": "unbounded.files",
    "save": "unbounded.files",
    "Generated": "unbounded.generation",
    "generate": "unbounded.generation",
    "DiskData": "unbounded.training",
    "HeldOutAscent": "unbounded.training",
    "Stream": "unbounded.training",
    "fit": "unbounded.training",
    "make_optimizer": "unbounded.training",
    "step": "unbounded.training",
    "UDNClassifier": "unbounded.estimators",
    "UDNRegressor": "unbounded.estimators",
    "ExportError": "unbounded.exporting",
    "export": "unbounded.exporting",
    "load_folder": "unbounded.exporting",
    "save_folder": "unbounded.exporting",
    "TableModel": "unbounded.tables",
    "BatchPredictor": "unbounded.tables",
}

_ROOMS = ("engines", "parallel", "steps", "training")  # `ub.training` without an import of its own

if not TYPE_CHECKING:  # a type checker would take this as leave to use any name

    def __getattr__(name: str) -> object:
        import importlib

        if name in _LAZY:
            value = getattr(importlib.import_module(_LAZY[name]), name)
            globals()[name] = value
            return value
        if name in _ROOMS:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LAZY})
