from __future__ import annotations

from array import array
from dataclasses import replace

from simulator.recorder import ADMIT, ITERATIONS, REJECT, RELEASE, Recorder
from simulator.request import FINISHED, REJECTED, Request, Sequence

ROW = (0, 0, 0, 0, 3, 30, 4, 12)  # from prefill_seqs to kv_blocks: three rows decode with 30 tokens of context


def test_a_window_equals_its_iterations() -> None:
    one, many = Recorder(), Recorder()
    one.window(5, [9, 12, 20], ROW, [0, 2])
    for start_ns, end_ns, context, blocks in ((5, 9, 30, 12), (9, 12, 33, 12), (12, 20, 36, 14)):
        many.iteration(start_ns, end_ns, (0, 0, 0, 0, 3, context, 4, blocks))
    assert one.iterations == many.iterations
    assert one.num_iterations == 3


def sequences() -> list[Sequence]:
    done, refused = Sequence(Request("done", 0, 5, 2), 0), Sequence(Request("refused", 3, 9, 9), 1)
    done.state, done.goal, done.finish_ns = FINISHED, 7, 20
    refused.state, refused.reason = REJECTED, "zero_output"
    return [done, refused]


def recorded() -> Recorder:
    recorder = Recorder()
    recorder.window(5, [9, 12, 20], ROW, [0, 2])
    recorder.chunks.extend((0, 0, 5, 0))
    recorder.spans.extend((1, 7, 8, 9))
    recorder.spans.extend((0, 0, 1, 1))
    recorder.spans.extend((1, 2, 3, 4))
    recorder.events.extend((5, ADMIT, 0, 0))
    recorder.events.extend((3, REJECT, 1, -1))
    recorder.events.extend((20, RELEASE, 0, 3))
    return recorder


def test_the_tables_of_a_log() -> None:
    log = recorded().log(sequences(), {"scheduler": "mine"})
    assert log.end_ns == 20
    assert tuple(log.iterations) == ITERATIONS
    assert log.iterations["kv_blocks"].tolist() == [12, 12, 14]
    assert log.spans["sequence"].tolist() == [0, 1, 1]
    assert log.spans["first"].tolist() == [1, 8, 3]  # by sequence, otherwise as they were recorded
    assert log.events["kind"].tolist() == [ADMIT, REJECT, RELEASE]
    assert log.sequences["emitted_tokens"].tolist() == [2, 0]
    assert log.sequences["output_tokens"].tolist() == [2, 9]
    assert log.sequences["finished"].tolist() == [1, 0]
    assert (log.ids, log.reasons) == (["done", "refused"], ["", "zero_output"])
    assert log.info == {"scheduler": "mine"}


def test_the_digest_covers_every_table_and_nothing_else() -> None:
    log = recorded().log(sequences(), {})
    assert log.digest == recorded().log(sequences(), {"fast_forward": True}).digest
    assert len(log.digest) == 64
    others = {log.digest}
    for table in ("iterations", "chunks", "spans", "events", "sequences"):
        name, column = next(iter(getattr(log, table).items()))
        others.add(replace(log, **{table: {**getattr(log, table), name: column + 1}}).digest)
    others.add(replace(log, ids=["done", "other"]).digest)
    others.add(replace(log, reasons=["", "other"]).digest)
    assert len(others) == 8


def test_an_empty_log() -> None:
    log = Recorder().log([], {})
    assert log.end_ns == 0
    assert all(len(column) == 0 for column in log.iterations.values())
    assert Recorder().events == array("q")
