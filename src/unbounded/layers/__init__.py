"""Generators of layers: ℓ ↦ hidden layer f_ℓ and ℓ ↦ head o_ℓ (the paper's section 2)."""

from unbounded.layers.base import CustomLayers as CustomLayers
from unbounded.layers.base import Layers as Layers
from unbounded.layers.convolutional import ResidualConv as ResidualConv
from unbounded.layers.dense import Dense as Dense
from unbounded.layers.dense import PreNormDense as PreNormDense
from unbounded.layers.dense import ResidualDense as ResidualDense
from unbounded.layers.tables import TableDense as TableDense
from unbounded.layers.transformer import TransformerLayers as TransformerLayers
from unbounded.layers.trunk import TrunkDense as TrunkDense
from unbounded.layers.whitening import Whitened as Whitened
from unbounded.layers.whitening import whitening_filters as whitening_filters
