"""What the paper compares with, and what a user would take instead."""

from unbounded.baselines.dun import DUNLayers as DUNLayers
from unbounded.baselines.dun import dun as dun
from unbounded.baselines.dun import dun_original as dun_original
from unbounded.baselines.references import bayes_accuracy as bayes_accuracy
from unbounded.baselines.references import nearest_neighbours as nearest_neighbours
from unbounded.baselines.references import rbf_svm as rbf_svm
