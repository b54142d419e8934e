"""A RunLog as a list of steps: who computed how many tokens in each iteration, in the engine's order."""

from __future__ import annotations

from typing import NamedTuple

from simulator.recorder import ADMIT, PREEMPT, RunLog


class Step(NamedTuple):
    """One iteration. `rows` holds (id, tokens) in order of admission, `decodes` the ids among them that decode."""

    start_ns: int
    end_ns: int
    rows: list[tuple[str, int]]
    decodes: list[str]
    preempted: list[str]


def steps_of(log: RunLog) -> list[Step]:
    """Every iteration of `log`.

    vLLM keeps its running list in order of (latest) admission and plans it before it admits, so sorting an
    iteration's rows by the admission that holds then gives its order.
    """
    count = len(log.iterations["start_ns"])
    prefills: list[dict[int, int]] = [{} for _ in range(count)]
    decodes: list[set[int]] = [set() for _ in range(count)]
    preempted: list[list[int]] = [[] for _ in range(count)]
    admitted: list[list[int]] = [[] for _ in range(count)]
    for iteration, seq, tokens in _rows(log.chunks, "iteration", "sequence", "tokens"):
        prefills[iteration][seq] = tokens
    decoding = log.iterations["decode_seqs"] > 0
    for seq, first, last in _rows(log.spans, "sequence", "first", "last"):
        for iteration in range(first, last + 1):
            if decoding[iteration]:
                decodes[iteration].add(seq)
    for kind, seq, iteration in _rows(log.events, "kind", "sequence", "iteration"):
        if kind == ADMIT:
            admitted[iteration].append(seq)
        elif kind == PREEMPT:
            preempted[iteration].append(seq)
    order: dict[int, int] = {}
    admissions = 0
    names = log.ids
    out = []
    times = _rows(log.iterations, "start_ns", "end_ns")
    for i, (start_ns, end_ns) in enumerate(times):
        for seq in admitted[i]:
            admissions += 1
            order[seq] = admissions
        tokens_of = prefills[i] | dict.fromkeys(decodes[i], 1)
        rows = sorted(tokens_of, key=order.__getitem__)
        out.append(
            Step(
                start_ns,
                end_ns,
                [(names[seq], tokens_of[seq]) for seq in rows],
                [names[seq] for seq in rows if seq in decodes[i]],
                [names[seq] for seq in preempted[i]],
            )
        )
    return out


def _rows(table: dict, *columns: str) -> list[tuple[int, ...]]:
    return list(zip(*(table[name].tolist() for name in columns), strict=True))
