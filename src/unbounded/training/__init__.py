"""Training: one step for people with a loop of their own, `fit` for everybody else."""

from unbounded.engines.averages import AveragedModel as AveragedModel
from unbounded.steps.depth_rules import DepthRule as DepthRule
from unbounded.steps.depth_rules import RateAscent as RateAscent
from unbounded.steps.disk import DiskData as DiskData
from unbounded.steps.held_out import HeldOutAscent as HeldOutAscent
from unbounded.steps.images import Augment as Augment
from unbounded.steps.images import ImageData as ImageData
from unbounded.steps.optimizers import make_optimizer as make_optimizer
from unbounded.steps.optimizers import param_groups as param_groups
from unbounded.steps.options import FitOptions as FitOptions
from unbounded.steps.options import StepOptions as StepOptions
from unbounded.steps.step import NonFiniteError as NonFiniteError
from unbounded.steps.step import StepInfo as StepInfo
from unbounded.steps.step import step as step
from unbounded.steps.streams import Stream as Stream
from unbounded.training.callbacks import Callback as Callback
from unbounded.training.callbacks import Sharpen as Sharpen
from unbounded.training.callbacks import TensorBoard as TensorBoard
from unbounded.training.fit import fit as fit
from unbounded.training.history import History as History
from unbounded.training.presets import PRESETS as PRESETS
from unbounded.training.presets import Preset as Preset
from unbounded.training.presets import preset as preset
from unbounded.training.trainer import FitResult as FitResult
from unbounded.training.trainer import Trainer as Trainer
from unbounded.training.trainer import TrainingWarning as TrainingWarning
