"""Shared settings: examples of hypothesis are fixed, so that a red build is red again tomorrow."""

import os
import signal
import warnings

import pytest
import torch
from hypothesis import settings

from unbounded.data.downloads import FOLDER

# The tests' networks are tiny: a second thread only waits, for long on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that tests start
torch.set_num_threads(1)

# The tests' own servers are on loopback: a proxy of the environment is not asked for them.
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1", "localhost"]))

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _same_state():
    """Each test starts from the same state of torch's global generator, and with one thread.

    Two that a test leaves behind make all that follow it on a busy machine ten times as slow.
    """
    torch.manual_seed(1234)
    yield
    torch.set_num_threads(1)  # afterwards: a module's fixtures are made before this one


@pytest.fixture
def compiler():
    """Of `torch.compile`, without what earlier tests left and with its own warnings let be."""
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.compiler.reset()


@pytest.fixture
def no_folder(monkeypatch):
    """No folder of data in the environment: loaders go to their cache or download."""
    monkeypatch.delenv(FOLDER, raising=False)


@pytest.fixture
def _ctrl_c():
    """SIGINT as at a terminal; it is ignored in what a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
