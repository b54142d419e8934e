"""When tokens reached their clients, from a RunLog: counted, and listed only on request.

Inter-token gaps are a weighted set, one entry per decode iteration and per start of a decode span, so memory
grows with iterations and requests, never with tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.recorder import RunLog

Ints = NDArray[np.int64]


class TokenFlow(NamedTuple):
    """All tokens of the completed requests, counted instead of listed.

    `gap_ns` occurs `gap_count` times between two successive tokens of one request; `tokens` of them reach
    their clients at `time_ns` (unordered, times may repeat).
    """

    gap_ns: Ints
    gap_count: Ints
    time_ns: Ints
    tokens: Ints


class _Spans(NamedTuple):
    """Decode spans of completed requests; `begin:end` index the iterations that have decode rows."""

    sequence: Ints
    begin: Ints
    end: Ints
    after_ns: Ints
    last_ns: Ints  # when the last token before or in the span came out
    before_ns: Ints  # when the last token of everything earlier came out


def token_flow(log: RunLog) -> TokenFlow:
    """Gaps and emission times of every token, as counts (see the module's notes)."""
    s = log.sequences
    done = s["finished"] == 1
    if log.info.get("respond_at") == "batch_end":
        tokens = s["emitted_tokens"][done]
        gaps = np.array([(tokens - 1).sum()], dtype=np.int64)
        return TokenFlow(np.zeros(1, np.int64), gaps, s["finish_ns"][done], tokens)
    decode_ns = _decode_ends(log)
    spans = _spans(log, decode_ns)
    full = spans.end > spans.begin
    begin, end = spans.begin[full], spans.end[full]
    starts = np.bincount(begin, minlength=len(decode_ns) + 1)
    rows = np.cumsum(starts - np.bincount(end, minlength=len(decode_ns) + 1))[:-1]
    again_ns, again_gap = _recompute_tokens(log, spans)
    gap = np.concatenate([np.diff(decode_ns), decode_ns[begin] - spans.after_ns[full], again_gap])
    single = np.ones(len(begin) + len(again_gap), dtype=np.int64)
    gap_count = np.concatenate([(rows - starts[:-1])[1:], single])
    first_ns = s["first_token_ns"][done]
    time = np.concatenate([decode_ns, first_ns, again_ns])
    tokens = np.concatenate([rows, np.ones(len(first_ns) + len(again_ns), dtype=np.int64)])
    return TokenFlow(gap[gap_count > 0], gap_count[gap_count > 0], time[tokens > 0], tokens[tokens > 0])


def itl(log: RunLog) -> tuple[Ints, Ints]:
    """Inter-token gaps in nanoseconds, and how often each occurs over all completed requests."""
    flow = token_flow(log)
    return flow.gap_ns, flow.gap_count


def _decode_ends(log: RunLog) -> Ints:
    return log.iterations["end_ns"][log.iterations["decode_seqs"] > 0]


def _spans(log: RunLog, decode_ns: Ints) -> _Spans:
    """The spans of completed requests, their iterations turned into ranks among decode iterations."""
    finished = log.sequences["finished"] == 1
    keep = finished[log.spans["sequence"]]
    sequence, after, first, last = (log.spans[name][keep] for name in ("sequence", "after", "first", "last"))
    rank = np.concatenate([[0], np.cumsum(log.iterations["decode_seqs"] > 0)])
    begin = rank[np.minimum(first, len(rank) - 1)]
    end = np.maximum(rank[np.maximum(last + 1, 0)], begin)
    after_ns = log.iterations["end_ns"][after]
    last_ns = after_ns.copy()
    full = end > begin
    last_ns[full] = decode_ns[end[full] - 1]
    before_ns = log.sequences["first_token_ns"][sequence]
    follows = np.flatnonzero(sequence[1:] == sequence[:-1]) + 1
    before_ns[follows] = last_ns[follows - 1]
    return _Spans(sequence, begin, end, after_ns, last_ns, before_ns)


def _recompute_tokens(log: RunLog, spans: _Spans) -> tuple[Ints, Ints]:
    """Tokens that a recomputation after a preemption ended with: when, and how long after the one before.

    Such a token shows as a span whose `after` is later than all that came before it, or, where it was the
    last one, as a finish later than everything in the spans.
    """
    s = log.sequences
    inside = spans.after_ns != spans.before_ns
    last_ns = s["first_token_ns"].copy()
    ends = np.flatnonzero(np.diff(spans.sequence, append=-1))  # each sequence's last span
    last_ns[spans.sequence[ends]] = spans.last_ns[ends]
    final = (s["finished"] == 1) & (s["finish_ns"] != last_ns)
    time = np.concatenate([spans.after_ns[inside], s["finish_ns"][final]])
    gap = np.concatenate([(spans.after_ns - spans.before_ns)[inside], (s["finish_ns"] - last_ns)[final]])
    return time, gap


def token_times(log: RunLog, index: int) -> Ints:
    """When each token of the request in row `index` reached its client (ns); empty unless completed."""
    return _token_times(log, [index])[0]


def expand_itls(log: RunLog) -> list[Ints]:
    """Every inter-token gap (ns), one array per request, empty unless completed: grows with tokens."""
    return [np.diff(times) for times in _token_times(log, range(len(log.ids)))]


def _token_times(log: RunLog, rows: Sequence[int]) -> list[Ints]:
    decode_ns = _decode_ends(log)
    spans = _spans(log, decode_ns)
    wanted = np.asarray(rows, dtype=np.int64)
    bounds = zip(*np.searchsorted(spans.sequence, np.stack([wanted, wanted + 1])).tolist(), strict=True)
    s = log.sequences
    out = []
    for row, (low, high) in zip(rows, bounds, strict=True):
        if not s["finished"][row]:
            out.append(np.empty(0, np.int64))
            continue
        if log.info.get("respond_at") == "batch_end":
            out.append(np.full(s["emitted_tokens"][row], s["finish_ns"][row]))
            continue
        parts: list[Ints] = [s["first_token_ns"][row : row + 1]]
        for k in range(low, high):
            parts += [spans.after_ns[k : k + 1], decode_ns[spans.begin[k] : spans.end[k]]]
        # A span's `after` mostly repeats a token that is there already; so does the finish.
        out.append(np.unique(np.concatenate([*parts, s["finish_ns"][row : row + 1]])))
    return out
