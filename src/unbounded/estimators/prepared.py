"""Fitted models that are ready to predict: frozen, in double precision, and kept between calls.

Freezing copies the weights, which takes several times as long as the prediction of a row. So a copy
is kept as long as its model stays as it is. It is kept beside the model and not within: a
prediction changes no estimator, and pickles and files do not carry it.
"""

from collections.abc import Sequence
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unbounded.frozen import Frozen
from unbounded.likelihoods import Prediction
from unbounded.model import UDN


class Prepared:
    """A frozen copy of a model in double precision, and what the model was when it was made."""

    def __init__(self, model: UDN):
        # Outside of a caller's inference mode: what is made here is used again elsewhere.
        with torch.inference_mode(False):
            self.frozen: Frozen = model.freeze().double()
            # q is in single precision: normalised anew, its sum is one in double.
            self.log_q = self.frozen.depth_probs.log().log_softmax(0)
        network = model.network
        stack = network.stack(len(self.frozen.hidden), self.frozen.first_depth)
        parts = model.depth, model.likelihood, *stack.hidden, *stack.heads
        # Not the model itself: it could never go while this is kept.
        self._modules: list[nn.Module] = [network.hidden, network.heads]
        self._modules += [module for part in parts for module in part.modules()]
        watched = [_flat(t) for m in self._modules for t in _tensors(m) if _is_watched(t)]
        self._values = [(values, _direction[: len(values)]) for values in watched]
        # Numbers that are no tensors, such as a fixed scale; not whether a module is in training.
        self._numbers = [
            (held, name)
            for held in map(vars, self._modules)
            for name, value in held.items()
            if type(value) in _PLAIN and name != "training"
        ]
        self._seen = self._look(model)

    @classmethod
    def of(cls, model: UDN) -> "Prepared":
        """That of this model, made anew if the model is another one than it was."""
        if model.anchor.device.type != "cpu":  # values cannot be looked at in no time
            return cls(model)
        known = _known.get(model)
        if known is None or known._look(model) != known._seen:
            known = _known[model] = cls(model)
        return known

    def predictions(self, x: Tensor) -> Sequence[Prediction]:
        """The mixtures over depths for inputs `(rows, …)`, one for each member of the network."""
        with torch.inference_mode():
            outputs, _ = self.frozen(x)
        return self.frozen.likelihood.predictions(outputs, self.log_q)

    def _look(self, model: UDN) -> list[Any]:
        """What a change of the model would change: which parts there are, and their values."""
        seen: list[Any] = [id(model.network.hidden), id(model.depth), id(model.likelihood)]
        for module in self._modules:
            seen += map(id, module._modules.values())
            for tensor in _tensors(module):
                # A tensor that is replaced, one whose storage is, and one that is written to by
                # all but fused optimisers and `.data`; tensors of inference mode count nothing.
                if tensor is not None:
                    version = None if tensor.is_inference() else tensor._version
                    seen += (id(tensor), tensor.data_ptr(), version)
            seen += (len(module._forward_hooks), len(module._forward_pre_hooks))
        seen += [held.get(name) for held, name in self._numbers]
        # What `.data` changes as well, among the first values of each tensor: a projection.
        seen += [values.dot(direction) for values, direction in self._values]
        return seen


_known: WeakKeyDictionary[UDN, Prepared] = WeakKeyDictionary()
_PLAIN = frozenset((bool, int, float))
_LONGEST = 1 << 16  # values of a tensor that are looked at
_direction = np.random.default_rng(0).standard_normal(_LONGEST).astype(np.float32)


def _tensors(module: nn.Module) -> list[Tensor | None]:
    return [*module._parameters.values(), *module._buffers.values()]


def _is_watched(tensor: Tensor | None) -> TypeGuard[Tensor]:
    plain = (torch.float32, torch.float64)
    return tensor is not None and tensor.is_contiguous() and tensor.dtype in plain


def _flat(tensor: Tensor) -> NDArray[Any]:
    """The values as they are now and will be, `(values,)`: no copy."""
    values: NDArray[Any] = tensor.detach().view(-1).numpy()
    return values[:_LONGEST]
