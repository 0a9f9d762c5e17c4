"""Optimisers with one group each for hidden layers, heads and depth."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

if TYPE_CHECKING:
    from unbounded.model import UDN

DEPTH_LR_RATIO = 0.1
"""λ learns at a tenth of the weights' rate, as on the paper's spirals."""


class Adam(torch.optim.Adam):
    """torch's fused Adam with less Python a step: the same state, arithmetic and options.

    torch gathers five lists of tensors from dictionaries at every step, which takes longer than
    the update of a small network. Here they are gathered when the set of parameters with a
    gradient changes. Anything out of the ordinary goes to torch's own step.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update of every parameter that has a gradient."""
        lean = closure is None and not self._hooks() and getattr(self, "grad_scale", None) is None
        if not lean or any(not _is_plain(group) for group in self.param_groups):
            return _HOOKED_STEP(self, closure)
        gathered: list[_Gathered] = self.__dict__.setdefault("_gathered", [])
        if len(gathered) != len(self.param_groups):
            gathered[:] = [_Gathered() for _ in self.param_groups]
        steps: list[Tensor] = []
        actives = [[p for p in g["params"] if p.grad is not None] for g in self.param_groups]
        for active, lists in zip(actives, gathered, strict=True):
            if active:
                if not lists.fits(active, self.state) and not lists.gather(active, self.state):
                    return _HOOKED_STEP(self)  # somebody's first step: torch sets the state up
                steps += lists.steps
        if steps:
            torch._foreach_add_(steps, 1)
        for group, active, lists in zip(self.param_groups, actives, gathered, strict=True):
            if not active:
                continue
            beta1, beta2 = group["betas"]
            torch._fused_adam_(
                active,
                [p.grad for p in active],
                lists.means,
                lists.squares,
                [],
                lists.steps,
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
        return None

    # Tells torch not to wrap this step for its profiler and hooks, a third of its time; a step
    # with hooks goes to torch's own, which is wrapped.
    step.hooked = True  # type: ignore[attr-defined]

    def _hooks(self) -> bool:
        return bool(self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks) or bool(
            _global_optimizer_pre_hooks or _global_optimizer_post_hooks
        )

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {key: value for key, value in state.items() if key != "_gathered"}


_HOOKED_STEP = torch.optim.Optimizer.profile_hook_step(torch.optim.Adam.step)


class _Gathered:
    """The state of the active parameters of a group as the lists that the kernel takes."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.means: list[Tensor] = []
        self.squares: list[Tensor] = []
        self.steps: list[Tensor] = []

    def fits(self, active: list[nn.Parameter], state: Any) -> bool:
        """Whether the lists are those of these parameters and of their present state."""
        return (
            self.ids == [id(p) for p in active]
            and state[active[0]].get("exp_avg") is self.means[0]
            and state[active[-1]].get("exp_avg") is self.means[-1]
        )

    def gather(self, active: list[nn.Parameter], state: Any) -> bool:
        """Make the lists; False if a parameter has no state yet."""
        states = [state[p] for p in active]
        if not all("exp_avg" in s and isinstance(s["step"], Tensor) for s in states):
            self.ids = []
            return False
        self.ids = [id(p) for p in active]
        self.means = [s["exp_avg"] for s in states]
        self.squares = [s["exp_avg_sq"] for s in states]
        self.steps = [s["step"] for s in states]
        return True


def _is_plain(group: dict[str, Any]) -> bool:
    return bool(
        group["fused"]
        and not group["amsgrad"]
        and not group["maximize"]
        and not group.get("decoupled_weight_decay")
        and not group["differentiable"]
        and isinstance(group["lr"], float)
    )


def param_groups(
    model: "UDN", lr: float, depth_lr_ratio: float = DEPTH_LR_RATIO, **options: Any
) -> list[dict[str, Any]]:
    """Three named groups for any `torch.optim` optimiser; `unbounded.growth` extends them.

    The parameters of the likelihood (a learnt noise) go with the heads. The depth group has
    no weight decay: decay would pull softplus⁻¹(λ) towards 0 and λ towards 0.69.

    Args:
        model: the model to train.
        lr: rate of the weights.
        depth_lr_ratio: rate of λ, as a multiple of `lr`.
        options: further options of the hidden and head groups, such as `weight_decay`.
    """
    if not depth_lr_ratio >= 0:
        raise ValueError(f"depth_lr_ratio must be at least 0, got {depth_lr_ratio}")
    roles: dict[str, list[tuple[str, nn.Parameter]]] = {"hidden": [], "heads": [], "depth": []}
    for name, parameter in model.named_parameters():
        if name.startswith("network.hidden."):
            roles["hidden"].append((name, parameter))
        elif name.startswith("depth."):
            roles["depth"].append((name, parameter))
        else:
            roles["heads"].append((name, parameter))
    groups: list[dict[str, Any]] = [
        {"role": "hidden", "params": roles["hidden"], "lr": lr, **options},
        {"role": "heads", "params": roles["heads"], "lr": lr, **options},
    ]
    if roles["depth"]:  # a fixed depth has nothing to learn
        groups.append(
            {"role": "depth", "params": roles["depth"], "lr": lr * depth_lr_ratio}
            | {"weight_decay": 0.0}
        )
    return groups


def make_optimizer(
    model: "UDN",
    kind: type[torch.optim.Optimizer] = torch.optim.Adam,
    lr: float = 0.005,
    *,
    depth_lr_ratio: float = DEPTH_LR_RATIO,
    **options: Any,
) -> torch.optim.Optimizer:
    """Any `torch.optim` optimiser over `param_groups`.

    Args:
        model: the model to train.
        kind: the optimiser's class.
        lr: rate of the weights.
        depth_lr_ratio: rate of λ, as a multiple of `lr`.
        options: passed to the optimiser, such as `momentum` or `weight_decay`.
    """
    if not lr > 0:
        raise ValueError(f"lr must be positive, got {lr}")
    if "fused" not in options and kind in (torch.optim.Adam, torch.optim.AdamW):
        options["fused"] = True  # one kernel a group instead of a dozen a parameter
    groups = param_groups(model, lr, depth_lr_ratio)
    if "weight_decay" not in kind.__init__.__code__.co_varnames:
        for group in groups:
            group.pop("weight_decay", None)
    if kind is torch.optim.Adam:
        kind = Adam
    return kind(groups, lr=lr, **options)  # type: ignore[call-arg]
