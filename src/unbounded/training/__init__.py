"""Training: one step for people with a loop of their own, `fit` for everybody else."""

from unbounded.training.callbacks import Callback as Callback
from unbounded.training.callbacks import Sharpen as Sharpen
from unbounded.training.callbacks import TensorBoard as TensorBoard
from unbounded.training.depth_rules import DepthRule as DepthRule
from unbounded.training.depth_rules import RateAscent as RateAscent
from unbounded.training.engines import Eager as Eager
from unbounded.training.engines import Engine as Engine
from unbounded.training.history import History as History
from unbounded.training.images import Augment as Augment
from unbounded.training.images import ImageData as ImageData
from unbounded.training.loop import FitResult as FitResult
from unbounded.training.loop import fit as fit
from unbounded.training.optimizers import make_optimizer as make_optimizer
from unbounded.training.optimizers import param_groups as param_groups
from unbounded.training.step import NonFiniteError as NonFiniteError
from unbounded.training.step import StepInfo as StepInfo
from unbounded.training.step import step as step
