"""What a RunLog says, played again token by token: slow, listing everything, and nothing shared with the engine."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from simulator import RunLog
from simulator.recorder import ADMIT, EVENT_KINDS, PREEMPT, REJECT, RELEASE


@dataclass
class Replay:
    """Per iteration and per request, from chunks, spans and events alone."""

    decoding: list[list[int]] = field(default_factory=list)  # who gets a token by decoding
    decode_context: list[int] = field(default_factory=list)
    prefill_tokens: list[int] = field(default_factory=list)
    prefill_pairs: list[int] = field(default_factory=list)
    holders: list[list[int]] = field(default_factory=list)  # who has a slot while the iteration runs
    tokens: list[list[int]] = field(default_factory=list)  # in memory, per holder
    emissions: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # iterations, per request
    lost: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # tokens computed in vain, per request

    def blocks(self, block_size: int) -> list[int]:
        return [sum(-(-n // block_size) for n in row) for row in self.tokens]


def rows(table: dict[str, list[int]]) -> list[dict[str, int]]:
    """A table as one dict per row."""
    columns = {name: column.tolist() for name, column in table.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def events(log: RunLog) -> list[tuple[int, str, int, int]]:
    """(time_ns, kind, sequence, iteration), as recorded."""
    return [(e["time_ns"], EVENT_KINDS[e["kind"]], e["sequence"], e["iteration"]) for e in rows(log.events)]


def replay(log: RunLog) -> Replay:
    """Go through the iterations one by one."""
    out = Replay()
    iterations, prompts = rows(log.iterations), log.sequences["prompt_tokens"].tolist()
    chunks, decodes, changes = defaultdict(list), defaultdict(list), _changes(log)
    for chunk in rows(log.chunks):
        chunks[chunk["iteration"]].append(chunk)
    for span in rows(log.spans):
        for i in range(span["first"], span["last"] + 1):
            if iterations[i]["decode_seqs"]:
                decodes[i].append(span["sequence"])
    held: dict[int, int] = {}
    for i in range(len(iterations)):
        for kind, seq in changes[i]:
            if kind == ADMIT:
                assert seq not in held
                held[seq] = 0
            else:
                gone = held.pop(seq, 0)
                out.lost[seq] += gone if kind == PREEMPT else 0
        for seq in decodes[i]:
            held[seq] += 1
            out.emissions[seq].append(i)
        out.decoding.append(decodes[i])
        out.decode_context.append(sum(held[seq] for seq in decodes[i]))
        pairs = 0
        for chunk in chunks[i]:
            seq, new = chunk["sequence"], chunk["tokens"]
            assert held[seq] == chunk["context"]
            pairs += sum(chunk["context"] + k + 1 for k in range(new))
            held[seq] += new
            if held[seq] == prompts[seq] + len(out.emissions[seq]):
                out.emissions[seq].append(i)
        out.prefill_tokens.append(sum(chunk["tokens"] for chunk in chunks[i]))
        out.prefill_pairs.append(pairs)
        out.holders.append(list(held))
        out.tokens.append(list(held.values()))
    return out


def _changes(log: RunLog) -> dict[int, list[tuple[int, int]]]:
    """Who got or lost a slot before each iteration began, in order.

    An asynchronous engine begins iteration i while i - 1 runs, so what i - 1 releases is still held during i, unless
    i could only be begun afterwards: then it admits somebody after the release.
    """
    changes = defaultdict(list)
    table = rows(log.events)
    last_admit = {e["iteration"]: place for place, e in enumerate(table) if e["kind"] == ADMIT}
    for place, e in enumerate(table):
        if e["kind"] == REJECT:
            continue
        i = e["iteration"]
        if log.info["async_scheduling"] and e["kind"] == RELEASE and last_admit.get(i, -1) < place:
            i += 1
        changes[i].append((e["kind"], e["sequence"]))
    return changes


def token_times(log: RunLog, played: Replay, seq: int) -> list[int]:
    """When the client got each token."""
    if log.info["respond_at"] == "batch_end":
        return [int(log.sequences["released_ns"][seq])] * len(played.emissions[seq])
    ends = log.iterations["end_ns"].tolist()
    return [ends[i] for i in played.emissions[seq]]


def steps(log: RunLog) -> list[str]:
    """One line per iteration: `a+7 b+2 | c d` is 7 tokens of a, 2 of b, and a token each for c and d."""
    lines = []
    chunks = rows(log.chunks)
    decoding = replay(log).decoding
    for i in range(len(decoding)):
        prefill = [f"{log.ids[c['sequence']]}+{c['tokens']}" for c in chunks if c["iteration"] == i]
        lines.append(" ".join(prefill + ["|"] * bool(decoding[i]) + sorted(log.ids[seq] for seq in decoding[i])))
    return lines


def story(log: RunLog) -> list[str]:
    """The events as `time kind id`."""
    return [f"{time_ns} {kind} {log.ids[seq]}" for time_ns, kind, seq, _ in events(log)]
