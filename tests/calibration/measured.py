"""Folders measured once per test run, for every module that needs one. Copy before writing into them."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from calibration.measure import main


@cache
def cpu_folder() -> Path:
    """The tiny model on the processor, fifteen seconds: a part of the plan that spans it."""
    return _measured("cpu", "tiny", "--budget", "15s")


@cache
def fake_folder(model: str = "llama-3.1-8b") -> Path:
    """The whole plan on the fake device."""
    return _measured("fake", model)


def _measured(device: str, model: str, *options: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"measured-{device}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    assert main(["--model", model, "--device", device, "--out", str(folder), *options]) == 0
    return folder
