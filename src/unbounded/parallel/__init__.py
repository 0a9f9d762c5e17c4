"""Training in several processes that torchrun has started: who they are and what they exchange.

Each process holds the whole model, computes with its part of the rows, and takes the same step as
all others. What is summed over them: gradients, the terms of the objective, log-likelihoods by
depth, scores. Births need no message: first weights depend on the seed and the depth alone.
"""

from unbounded.parallel.processes import ALONE as ALONE
from unbounded.parallel.processes import ProcessError as ProcessError
from unbounded.parallel.processes import Processes as Processes
from unbounded.parallel.shards import Shards as Shards
from unbounded.parallel.shards import unshard as unshard
from unbounded.parallel.start import alone as alone
from unbounded.parallel.start import choose_gpu as choose_gpu
from unbounded.parallel.start import current as current
from unbounded.parallel.start import rank as rank
from unbounded.parallel.start import started as started
