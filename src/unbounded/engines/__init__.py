"""How the steps of one model or many are carried out."""

from unbounded.engines.base import Engine as Engine
from unbounded.engines.eager import Eager as Eager
from unbounded.engines.graphs import Graphs as Graphs
from unbounded.engines.stacked import Stacked as Stacked
