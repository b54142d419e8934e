"""The runs of a plan, for whatever looks at them afterwards: claims, pictures, accounts of waste.

A result on disk has no RunLog. Runs are deterministic, so the log is simulated again when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.build import reserved_of, slots_of, workload
from experiments.config import RunConfig
from experiments.run import Outcome, simulate_run
from simulator.recorder import RunLog
from simulator.suggest import did_you_mean
from simulator.tokens import Ints

KEEP_REQUESTS = 5000  # a log of a larger run isn't kept for the next question


class Runs:
    """The outcomes of a plan by label; "" is the label of an only run. Asking for one that isn't there: LookupError."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = {outcome.run.label: outcome for outcome in outcomes}
        self._logs: dict[str, RunLog] = {}

    @property
    def labels(self) -> list[str]:
        """Every label, in order."""
        return list(self._outcomes)

    def config(self, label: str) -> RunConfig:
        """The resolved config of a run."""
        return self._outcome(label).run

    def result(self, label: str) -> dict[str, Any]:
        """What `result.json` holds."""
        return self._outcome(label).result

    def log(self, label: str) -> RunLog:
        """The RunLog, simulated again where it isn't at hand."""
        if label not in self._logs:
            run = self.config(label)
            log = simulate_run(run, workload(run.settings).requests)
            if len(log.ids) > KEEP_REQUESTS:
                return log
            self._logs[label] = log
        return self._logs[label]

    def slots(self, label: str) -> int:
        """The sequences a run has room for: its batch size where it has one, else max_num_seqs."""
        return slots_of(self.config(label))

    def reserved(self, label: str) -> Ints | None:
        """Tokens reserved per request, where memory is reserved whole."""
        run = self.config(label)
        return reserved_of(run, self.log(label), workload(run.settings).requests)

    def _outcome(self, label: str) -> Outcome:
        if label not in self._outcomes:
            raise LookupError(f"no run {label!r} here{did_you_mean(label, self.labels)}")
        return self._outcomes[label]
