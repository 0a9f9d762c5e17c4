"""Where to compute, as a user names it."""

import torch


def check_device(name: str, error: type[Exception] = ValueError) -> str:
    """The name of a device, tried out; "auto" stays "auto".

    Raises:
        error: if it cannot be used.
    """
    try:
        torch.empty(1, device="cpu" if name == "auto" else name)
    except (RuntimeError, AssertionError, NotImplementedError) as reason:
        said = str(reason).splitlines()[0]
        raise error(f"the device {name!r} cannot be used: {said}") from None
    return name
