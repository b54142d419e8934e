"""How far it is: a bar on a terminal, lines elsewhere."""

import io

from calibration.harness import progress
from calibration.harness.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def _clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_gets_a_bar_on_one_line(monkeypatch):
    now = _clock(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    bar = Progress(4, stream)
    now[0] += 30
    bar.step("linear (m 8)")
    text = stream.getvalue()
    assert text.startswith("\r██████··················")
    assert "1/4  25%, 1:30 left, linear (m 8)" in text
    assert "\n" not in text
    assert len(text) == 80
    bar.say("warning: hot")
    assert stream.getvalue().endswith(f"\r{' ' * 79}\rwarning: hot\n")


def test_a_line_longer_than_the_terminal_is_cut(monkeypatch):
    _clock(monkeypatch)
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    Progress(4, stream).step("mixed " * 20)
    assert len(stream.getvalue()) == 40


def test_no_terminal_gets_a_line_every_25_points_or_ten_seconds(monkeypatch):
    now = _clock(monkeypatch)
    stream = io.StringIO()
    lines = Progress(60, stream)
    for _ in range(60):
        lines.step("norm")
    assert [line.partition(",")[0] for line in stream.getvalue().splitlines()] == ["25/60  42%", "50/60  83%"]
    now[0] += 11
    lines.more(10)
    lines.step("add")
    assert stream.getvalue().splitlines()[-1] == "61/70  87%, 0:02 left, add"
    lines.finish()


def test_the_time_left_is_within_the_budget(monkeypatch):
    now = _clock(monkeypatch)
    lines = Progress(100, io.StringIO(), budget_s=60.0)
    now[0] += 20
    lines.step("norm")
    assert lines.left_s() == 40.0
    now[0] += 50
    assert lines.left_s() == 0.0


def test_a_reader_who_left_does_not_end_the_measurement():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    lines = Progress(1, Closed())
    lines.say("warning: hot")
    assert lines.done == 0
