"""Hypothesis profiles: `ci` repeats exactly, `--hypothesis-profile=hunt` looks for new failures in 3,000 examples."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# pytest puts tests/ on the path, where the folders without __init__.py would pass for the packages they test; and
# samples that tests/simulator defines are used in tests/contract.
sys.path.insert(0, str(TESTS.parent))
sys.path.append(str(TESTS / "simulator"))

settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=60, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("hunt", settings.get_profile("ci"), derandomize=False, max_examples=3000)
settings.load_profile("ci")
