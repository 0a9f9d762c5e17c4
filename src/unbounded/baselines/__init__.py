"""What the paper compares with, and what a user would take instead."""

from unbounded.baselines.dropout import ChannelDropout as ChannelDropout
from unbounded.baselines.dropout import Dropped as Dropped
from unbounded.baselines.dropout import dropping as dropping
from unbounded.baselines.dun import DUNLayers as DUNLayers
from unbounded.baselines.dun import SharedHeadConv as SharedHeadConv
from unbounded.baselines.dun import dun as dun
from unbounded.baselines.dun import dun_of as dun_of
from unbounded.baselines.dun import dun_original as dun_original
from unbounded.baselines.equilibrium import MDEQ as MDEQ
from unbounded.baselines.ode import BareODE as BareODE
from unbounded.baselines.ode import DenseODE as DenseODE
from unbounded.baselines.ode import StemODE as StemODE
from unbounded.baselines.references import bayes_accuracy as bayes_accuracy
from unbounded.baselines.references import nearest_neighbours as nearest_neighbours
from unbounded.baselines.references import rbf_svm as rbf_svm
from unbounded.baselines.resnet import ResNet18 as ResNet18
from unbounded.baselines.whole import Whole as Whole
from unbounded.baselines.whole import plain as plain
