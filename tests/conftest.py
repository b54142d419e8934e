"""Hypothesis profiles: `ci` repeats exactly; `--hypothesis-profile=hunt` looks for new failures, thousands of examples."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# pytest puts tests/ on the path, where the folders without __init__.py would pass for the packages they test.
sys.path.insert(0, str(Path(__file__).parent.parent))

settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=50, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("hunt", settings.get_profile("ci"), derandomize=False, max_examples=3000)
settings.load_profile("ci")
