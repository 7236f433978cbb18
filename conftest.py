"""Set-up of every test run, the notebooks' included: results go to a temporary folder, and nobody is watching."""

import atexit
import os
import shutil
import tempfile

import pytest
import torch

CELL_TIMEOUT = 300  # seconds
OUTPUT_TIMEOUT = 60  # seconds; nbval's own 5 are too few on a busy machine


def pytest_configure(config):
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # on a busy machine, threads that spin slow everything down
    os.environ.setdefault("BAYESATTN_DEVICE", "cpu")
    os.environ.setdefault("BAYESATTN_PROFILE", "quick")
    out = tempfile.mkdtemp(prefix="bayesattn-")  # never the committed places: a chapter compares with them
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    os.environ["BAYESATTN_OUT"] = out
    if config.getoption("nbval", False):
        config.option.nbval_cell_timeout = CELL_TIMEOUT


def pytest_collection_modifyitems(items):
    for item in items:
        if hasattr(item, "output_timeout"):
            item.output_timeout = OUTPUT_TIMEOUT
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device: runs again where there is one"))
        if item.get_closest_marker("browser") and not shutil.which("chromium"):
            item.add_marker(pytest.mark.skip(reason="needs headless Chromium: runs again where it is installed"))
