"""Shared settings: examples of hypothesis are fixed, so that a red build is red again tomorrow."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _same_random_state():
    """Each test starts from the same state of torch's global generator."""
    torch.manual_seed(1234)
