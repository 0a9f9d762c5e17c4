"""Fitted models that are ready to predict: frozen, in double precision, and kept between calls.

Freezing copies the weights, which takes several times as long as the prediction of a row. So a copy
is kept as long as its model stays as it is. It is kept beside the model and not within: a
prediction changes no estimator, and pickles and files do not carry it. Few rows go through the
copy in NumPy where its layers can (`layers.few_rows`), and so does what is asked for most of their
mixture (`likelihoods.few_rows`).
"""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unbounded.frozen import Frozen
from unbounded.layers.few_rows import JointPass, has_global_hooks, numpy_pass
from unbounded.likelihoods import Prediction
from unbounded.likelihoods.few_rows import expectations
from unbounded.model import UDN


class Prepared:
    """A frozen copy of a model in double precision, and what the model was when it was made."""

    def __init__(self, model: UDN):
        # Outside of a caller's inference mode: what is made here is used again elsewhere.
        with torch.inference_mode(False):
            self.frozen: Frozen = model.freeze().double()
            # q is in single precision: normalised anew, its sum is one in double.
            self.log_q = self.frozen.depth_probs.log().log_softmax(0)
        on_cpu = model.anchor.device.type == "cpu"
        self._of_few = numpy_pass(self.frozen.stack()) if on_cpu else None
        takes_numbers = on_cpu and not model.layers.integer_inputs
        self._expected = expectations(self.frozen.likelihood, self.log_q) if takes_numbers else {}
        self._joint: tuple[list[Prepared], JointPass | None] | None = None  # with other members
        network = model.network
        stack = network.stack(len(self.frozen.hidden), self.frozen.first_depth)
        parts = model.depth, model.likelihood, *stack.hidden, *stack.heads
        # Not the model itself: it could never go while this is kept.
        self._modules: list[nn.Module] = [network.hidden, network.heads]
        self._modules += [module for part in parts for module in part.modules()]
        held = list(chain.from_iterable(map(_held, self._modules)))
        self._held, self._empty = [one for one in held if one], [one for one in held if not one]
        # Kept themselves, so that no other can come to have the identity of one that is gone.
        self._tensors = [t for module in self._modules for t in _tensors(module)]
        # Tensors of inference mode count no changes.
        self._counting = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._values = [_flat(tensor) for tensor in self._tensors if _is_watched(tensor)]
        self._few_values = [pair for pair in self._values if len(pair[0]) <= _LENGTH]
        self._many_values = [pair[0] for pair in self._values if len(pair[0]) > _LENGTH]
        # What else a pass may depend on: numbers, such as a fixed scale, and functions, such as an
        # activation; not whether a module is in training.
        self._others = [
            (held, name)
            for held in map(vars, self._modules)
            for name, value in held.items()
            if (type(value) in _PLAIN or callable(value)) and name != "training"
        ]
        self._others += [(vars(module), "forward") for module in self._modules]
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
        of_few = self._of_few
        if of_few is not None and len(x) <= FEW_ROWS and not has_global_hooks():
            outputs = torch.from_numpy(of_few(x.numpy()))
        else:
            with torch.inference_mode():
                outputs, _ = self.frozen(x)
        return self.frozen.likelihood.predictions(outputs, self.log_q)

    def expected(self, what: str, x: NDArray[Any]) -> Any:
        """A property of the mixture, by name, for few inputs `(rows, …)`; all of it in NumPy.

        Names are those of `likelihoods.few_rows`. None where it cannot be: then `predictions` has
        it.

        Args:
            what: the name.
            x: rows as the network takes them.
        """
        of_few, expected = self._of_few, self._expected.get(what)
        if of_few is None or expected is None or has_global_hooks():
            return None
        return expected(of_few(x))

    def expected_of_all(self, what: str, x: NDArray[Any], others: Sequence["Prepared"]) -> Any:
        """The same of this network and others: a list, or None where it cannot be of all."""
        known = self._joint
        if known is None or known[0] != others:  # the very same: they have no equality of their own
            members = [self, *others]
            passes = [one._of_few for one in members if one._of_few is not None]
            alike = len(passes) == len(members) and _are_alike(members)
            known = self._joint = list(others), JointPass(passes) if alike else None
        functions = [one._expected.get(what) for one in (self, *others)]
        of_few = known[1]
        if of_few is None or None in functions or has_global_hooks():
            return None
        pairs = zip(functions, of_few(x), strict=True)
        return [function(outputs) for function, outputs in pairs if function is not None]

    def _look(self, model: UDN) -> list[Any]:
        """What a change of the model would change: which parts there are, and their values.

        Loops are those of iterators: this is run before every prediction.
        """
        parts = model._modules
        network: Any = parts["network"]
        seen: list[Any] = [*map(id, parts.values()), id(network._modules["hidden"])]
        seen += map(id, chain.from_iterable(map(dict.values, self._held)))
        seen.append(sum(map(len, self._empty)))
        # Numbers, of which each is given once.
        seen += chain.from_iterable(chain.from_iterable(map(_hooks, self._modules)))
        # A tensor whose storage is replaced, and one that is written to by all but fused
        # optimisers and `.data`.
        seen += map(Tensor.data_ptr, self._tensors)
        seen += map(_version, self._counting)
        seen += [held.get(name) for held, name in self._others]
        # What `.data` changes as well: projections of the values.
        seen += [values.dot(direction) for values, direction in self._few_values]
        seen += map(_projected, self._many_values)
        return seen


FEW_ROWS = 64
"""Up to which NumPy is faster."""
_held = attrgetter("_modules", "_parameters", "_buffers")
_hooks = attrgetter("_forward_hooks", "_forward_pre_hooks")
_version = attrgetter("_version")
_known: WeakKeyDictionary[UDN, Prepared] = WeakKeyDictionary()
_PLAIN = frozenset((bool, int, float))
_LENGTH = 1 << 16
_direction = np.random.default_rng(0).standard_normal(_LENGTH).astype(np.float32)


def _are_alike(members: Sequence[Prepared]) -> bool:
    """Whether layers of one depth have parameters of one shape."""
    for layers in zip(*(one.frozen.stack().hidden for one in members), strict=False):
        if len({tuple(p.shape for p in layer.parameters()) for layer in layers}) > 1:
            return False
    return True


def _tensors(module: nn.Module) -> list[Tensor]:
    unused = getattr(module, "unused", ())  # what has no part in predictions need not be watched
    found = (*module._parameters.items(), *module._buffers.items())
    return [tensor for name, tensor in found if tensor is not None and name not in unused]


def _is_watched(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.dtype in (torch.float32, torch.float64)


def _flat(tensor: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """The values as they are now and will be, `(values,)`, and a direction as long: no copies."""
    values: NDArray[Any] = tensor.detach().view(-1).numpy()
    return values, _direction[: len(values)]


def _projected(values: NDArray[Any]) -> list[float]:
    """Numbers that other values would change: of many values one for each piece of them.

    Takes less time than a pass, which reads the same values in twice the precision.
    """
    whole = len(values) // _LENGTH * _LENGTH
    rest = values[whole:]
    pieces = values[:whole].reshape(-1, _LENGTH).dot(_direction)
    return [*pieces.tolist(), rest.dot(_direction[: len(rest)])]
