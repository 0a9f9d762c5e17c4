"""Shared settings: examples of hypothesis are fixed, so that a red build is red again tomorrow."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _untouched_random_state():
    """Nothing in the library may reseed torch's global generator."""
    torch.manual_seed(1234)
    yield
