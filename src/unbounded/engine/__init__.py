"""How training runs: many models at once, and CUDA graphs."""

from unbounded.engine.captured import Graphs as Graphs
from unbounded.engine.ensemble import combine as combine
from unbounded.engine.ensemble import predict_ensemble as predict_ensemble
from unbounded.engine.loop import fit_population as fit_population
from unbounded.engine.members import MemberResult as MemberResult
from unbounded.engine.optim import SGD as SGD
from unbounded.engine.optim import Adam as Adam
from unbounded.engine.population import Population as Population
from unbounded.training.engines import Eager as Eager
