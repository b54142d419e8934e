"""`calibrate measure` as a command: its files, its faults in one line, and that it needs nothing but Python."""

import ast
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calibration.harness.records import RAW_COLUMNS, alone
from calibration.measure import main
from calibration.points import load_points
from experiments.cli import main as servesim
from simulator.specs import MODELS, ModelSpec
from tests.calibration.measured import cpu_folder, fake_folder

ROOT = Path(__file__).resolve().parents[2]
# What a measuring machine may lack: everything but Python and torch.
BARE = [sys.executable, "-S", "-m", "calibration.measure"]


def _run(command, cwd=ROOT, **options):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, **options)


def _all_but_python(folder, names):
    return [name for name in names if not name.endswith(".py") and not (Path(folder) / name).is_dir()]


@pytest.mark.parametrize("folder", [cpu_folder, fake_folder])
def test_a_folder_holds_raw_points_and_meta(folder):
    rows = load_points(folder() / "points.csv")
    meta = json.loads((folder() / "meta.json").read_text())
    assert all(row.median_us > 0 for row in rows if row.timed)
    assert {"linear", "prefill", "decode", "mixed", "layer", "stack"} <= {row.point.op for row in rows}
    with (folder() / "raw.csv").open() as file:
        raw = list(csv.DictReader(file))
    assert tuple(raw[0]) == RAW_COLUMNS
    assert len(raw) >= sum(row.samples for row in rows)
    assert {
        "schema_version", "model", "tensor_parallel_size", "device", "gpu", "dtype", "engine", "status", "versions",
        "repeat_floor_pct", "seed", "plan_hash", "started", "ended", "argv", "clocks", "skipped", "host", "checkout",
    } <= set(meta)  # fmt: skip
    assert ModelSpec(**meta["model"]) in MODELS.values()
    assert meta["device"]["type"] in ("cpu", "fake")
    assert meta["gpu"] == meta["device"]["type"]
    assert meta["host"]["cores"] >= 1
    assert meta["points"]["timed"] == sum(row.timed for row in rows)
    assert meta["argv"][:3] == ["python3", "-m", "calibration.measure"]


def test_the_processor_runs_plain_in_float32_with_threads_recorded():
    rows = load_points(cpu_folder() / "points.csv")
    meta = json.loads((cpu_folder() / "meta.json").read_text())
    assert {row.point.mode for row in rows} == {"plain"}
    assert meta["dtype"] == "float32"
    assert meta["device"]["threads"] >= 1
    assert re.match(r"PyTorch [\d.]+.*, sdpa", meta["engine"])
    assert meta["versions"]["torch"]
    assert meta["all_reduce"] == "absent"


def test_a_fake_run_is_the_same_for_a_seed(tmp_path):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        command = ["--model", "tiny", "--device", "fake", "--seed", seed, "--out", str(tmp_path / name)]
        assert main(command) == 0
    texts = [(tmp_path / name / "points.csv").read_text() for name in ("a", "b", "c")]
    assert texts[0] == texts[1] != texts[2]


def test_an_allreduce_is_in_it_where_there_are_ranks(tmp_path):
    assert main(["--model", "tiny", "--device", "fake", "--tp", "2", "--out", str(tmp_path)]) == 0
    rows = load_points(tmp_path / "points.csv")
    reduced = [row for row in rows if row.point.op == "allreduce"]
    assert {(row.point.ranks, row.point.mode) for row in reduced} == {(2, "eager")}
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert meta["all_reduce"] == "included"
    assert meta["tensor_parallel_size"] == 2


def test_a_measured_folder_is_not_overwritten_but_gone_on_with(tmp_path, capsys):
    command = ["--model", "tiny", "--device", "fake", "--budget", "2s", "--out", str(tmp_path / "m")]
    assert main(command) == 0
    meta = json.loads((tmp_path / "m" / "meta.json").read_text())
    assert meta["status"] == "partial"
    assert "stopped by the budget" in capsys.readouterr().out
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--resume" in error
    assert main([*command[:-4], *command[-2:], "--resume"]) == 0
    meta = json.loads((tmp_path / "m" / "meta.json").read_text())
    assert meta["status"] == "stable"
    assert len(meta["runs"]) == 2
    assert meta["started"] == meta["runs"][0]["started"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "qwen3-8b"], "model tiny, not qwen3-8b"),
        (["--dtype", "fp16"], "dtype bfloat16, not float16"),
        (["--tp", "2"], "tensor_parallel_size 1, not 2"),
        (["--seed", "5"], "seed 0, not 5"),
        (["--device", "cpu"], "gpu fake, not cpu"),
    ],
)
def test_another_plan_is_not_mixed_in(tmp_path, capsys, options, said):
    command = ["--model", "tiny", "--device", "fake", "--out", str(tmp_path)]
    assert main([*command, "--budget", "1s"]) == 0
    before = (tmp_path / "points.csv").read_bytes(), (tmp_path / "raw.csv").read_bytes()
    capsys.readouterr()
    assert main([*command, *options, "--resume"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert before == ((tmp_path / "points.csv").read_bytes(), (tmp_path / "raw.csv").read_bytes())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "gpu"], "'gpu' must be one of cuda, cpu, fake"),
        (["--dtype", "bf61"], "did you mean 'bf16'?"),
        (["--budget", "5 minutes"], "must be a time above 0, such as 5m, 90s or 1h"),
        (["--budget", "0s"], "must be a time above 0"),
        (["--tp", "0"], "must be a whole number of at least 1"),
        (["--seed", "-1"], "must be a whole number of at least 0"),
        (["--model", "tiney"], "did you mean 'tiny'?"),
        (["--device", "fake", "--tp", "3"], "--tp 3 doesn't divide the 4 heads of tiny"),
    ],
)
def test_a_fault_is_a_line_and_status_2_in_both_commands(tmp_path, capsys, options, said):
    command = ["--model", "tiny", "--out", str(tmp_path / "m"), *options]
    for run in (main, lambda arguments: servesim(["calibrate", "measure", *arguments])):
        assert run(command) == 2
        output = capsys.readouterr()
        assert said in output.err
        assert output.out == ""
        assert "Traceback" not in output.err
    assert not (tmp_path / "m").exists()


def test_no_cuda_is_status_3_with_the_hint(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    for run in (main, lambda arguments: servesim(["calibrate", "measure", *arguments])):
        assert run(["--model", "tiny", "--out", str(tmp_path / "m")]) == 3
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "`--device cpu`" in error
    assert not (tmp_path / "m").exists()


def test_a_folder_that_cannot_be_written_is_a_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--model", "tiny", "--device", "fake", "--out", str(tmp_path / "file" / "m")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_meta_is_a_line(tmp_path, capsys, text):
    shutil.copytree(fake_folder(), tmp_path / "m")
    (tmp_path / "m" / "meta.json").write_text(text)
    command = ["--model", "llama-3.1-8b", "--device", "fake", "--resume", "--out", str(tmp_path / "m")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "meta.json" in error


def test_servesim_lists_the_action_and_knows_no_other(capsys):
    assert servesim(["calibrate", "--help"]) == 0
    assert "measure" in capsys.readouterr().out
    assert servesim(["calibrate", "mesure"]) == 2
    assert "did you mean 'measure'?" in capsys.readouterr().err


def test_the_fake_device_needs_the_standard_library_alone(tmp_path):
    for package in ("simulator", "calibration"):  # and nothing else of the checkout
        shutil.copytree(ROOT / package, tmp_path / package, ignore=_all_but_python)
    done = _run([*BARE, "--model", "tiny", "--device", "fake", "--out", "m"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    meta = json.loads((tmp_path / "m" / "meta.json").read_text())
    assert meta["checkout"] == {}
    assert "torch" not in meta["versions"]
    assert "points timed" in done.stdout
    carried_out, *progress = done.stderr.splitlines()
    assert re.fullmatch(r"fake: the formula of the fake device; \d+ points", carried_out)
    assert len(progress) >= 10
    assert all(re.match(r"\d+/\d+ +\d+%, \d+:\d\d left, \w+ \(", line) for line in progress)


def test_without_torch_it_is_missing(tmp_path):
    for device in ("cpu", "cuda"):
        done = _run([*BARE, "--model", "tiny", "--device", device, "--out", str(tmp_path / "m")])
        assert done.returncode == 3
        assert done.stderr.count("\n") == 1
        assert "needs torch" in done.stderr


def test_the_measuring_modules_import_nothing_but_torch():
    seen, queue = (
        set(),
        ["calibration.measure", *(f"calibration.harness.backends.{name}" for name in ("cuda", "cpu", "fake"))],
    )
    queue += ["calibration.harness.kernels", "calibration.harness.allreduce"]
    outside = set()
    while queue:
        name = queue.pop()
        path = ROOT / f"{name.replace('.', '/')}.py"
        path = path if path.exists() else ROOT / name.replace(".", "/") / "__init__.py"
        if name in seen or not path.exists():
            continue
        seen.add(name)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            ours = [each for each in found if each.split(".")[0] in ("simulator", "calibration")]
            queue += ours
            outside |= {each.split(".")[0] for each in found} - {"simulator", "calibration"}
    assert {"calibration.decoder", "calibration.points", "simulator.specs"} <= seen
    assert outside - set(sys.stdlib_module_names) == {"torch"}


def _lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_interrupted_it_keeps_what_it_has_and_says_how_to_go_on(tmp_path):
    out = tmp_path / "m"
    command = [sys.executable, "-m", "calibration.measure", "--model", "tiny", "--device", "cpu", "--out", str(out)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    with process:
        until = time.monotonic() + 60
        while not _lines(out / "points.csv") > 1 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert error.splitlines()[-1].endswith("points are kept; --resume goes on")
    assert "Traceback" not in error
    kept = load_points(out / "points.csv")
    assert kept
    assert json.loads((out / "meta.json").read_text())["status"] == "partial"


@pytest.mark.parametrize("device", ["fake", "cpu"])
def test_the_script_leaves_everything_in_one_folder(tmp_path, device):
    script = ROOT / "scripts" / "calibrate_gpu.sh"
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    options = {"MODEL": "tiny", "DEVICE": device, "BUDGET": "3s", "PYTHON": sys.executable}
    done = _run([str(script), str(tmp_path / "m")], env={**os.environ, **options})
    files = {path.name for path in (tmp_path / "m").iterdir()}
    assert {"raw.csv", "points.csv", "meta.json"} <= files
    assert "points timed" in done.stdout
    assert "fitting and validating" in done.stderr
    if device == "fake":
        assert {"profile.json", "report.md"} <= files, done.stderr


def test_the_script_says_how_to_fit_where_nothing_but_python_is(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    options = {"MODEL": "tiny", "DEVICE": "fake", "PYTHON": str(bare)}
    done = _run([str(ROOT / "scripts" / "calibrate_gpu.sh"), "m"], cwd=tmp_path, env={**os.environ, **options})
    assert done.returncode == 0, done.stderr
    assert f"servesim calibrate fit {tmp_path / 'm'}" in done.stdout
    assert {path.name for path in (tmp_path / "m").iterdir()} >= {"raw.csv", "points.csv", "meta.json"}


def test_the_script_passes_a_failure_on(tmp_path):
    script = ROOT / "scripts" / "calibrate_gpu.sh"
    options = {"MODEL": "tiney", "DEVICE": "fake", "PYTHON": sys.executable}
    assert _run([str(script), str(tmp_path / "m")], env={**os.environ, **options}).returncode == 2


def test_the_script_goes_on_after_a_point_that_cost_the_gpu(tmp_path):
    lost = tmp_path / "python"
    count = tmp_path / "count"
    lost.write_text(
        f"""#!/bin/sh
case "$*" in *calibration.measure*) echo "$@" >> {count}
  [ "$(wc -l < {count})" -gt 1 ] || {{ {sys.executable} "$@"; exit 1; }} ;;
esac
exec {sys.executable} "$@"
"""
    )
    lost.chmod(0o755)
    options = {"MODEL": "tiny", "DEVICE": "fake", "BUDGET": "100s", "PYTHON": str(lost)}
    done = _run([str(ROOT / "scripts" / "calibrate_gpu.sh"), str(tmp_path / "m")], env={**os.environ, **options})
    assert done.returncode == 0, done.stderr
    assert "going on for what is left of 100s" in done.stderr
    first, second = count.read_text().splitlines()
    assert "--budget 100s" in first
    assert 40 < int(re.search(r"--budget (\d+)s", second)[1]) <= 100


def _copied(tmp_path):
    """A folder of the fake device's, cut to a few points, so that there is something to go on with."""
    out = tmp_path / "m"
    out.mkdir()
    for name in ("raw.csv", "points.csv", "meta.json"):
        shutil.copy(fake_folder() / name, out)
    lines = (out / "points.csv").read_text().splitlines(keepends=True)
    (out / "points.csv").write_text("".join(lines[:20]))
    return out


def _resumed(out, capsys):
    """(exit status, lines on stderr) of going on, with every file as it was where it is refused."""
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    model = json.loads((fake_folder() / "meta.json").read_text())["model"]["name"]
    capsys.readouterr()
    status = main(["--model", model, "--device", "fake", "--out", str(out), "--resume"])
    if status:
        assert before == {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    return status, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("runs", 1, "runs: must be a list"),
        ("runs", [{}], "runs[0].started: missing"),
        ("anchors", {"norm/1": ["x"]}, "anchors.norm/1: 'x' is not a finite number"),
        ("anchors", {"norm/1": None}, "anchors.norm/1: is null"),
        ("drifts", "x", "drifts: must be a list of numbers"),
        ("warnings", [5], "warnings: must be a list of texts"),
    ],
)
def test_what_it_goes_on_from_is_checked(tmp_path, capsys, key, value, fault):
    out = _copied(tmp_path)
    meta = json.loads((out / "meta.json").read_text()) | {key: value}
    (out / "meta.json").write_text(json.dumps(meta))
    status, (line,) = _resumed(out, capsys)
    assert status == 2
    assert line.startswith(f"{out / 'meta.json'}: {fault}")


@pytest.mark.parametrize(
    ("name", "content", "faults"),
    [
        ("meta.json", None, ["not there, and it says what the points beside it are of"]),
        ("meta.json", b"{}", [f"{key}: missing" for key in ("anchors", "drifts", "warnings")]),
        ("meta.json", b"\xff", ["isn't UTF-8 text"]),
        ("points.csv", None, ["can't be read: No such file or directory"]),
        ("points.csv", b"\xff\n\xff\n", ["isn't a CSV file: 'utf-8'"]),
    ],
)
def test_files_that_are_lost_or_broken_are_not_begun_again(tmp_path, capsys, name, content, faults):
    out = _copied(tmp_path)
    (out / name).unlink() if content is None else (out / name).write_bytes(content)
    status, lines = _resumed(out, capsys)
    assert status == 2
    assert len(lines) == len(faults)
    assert all(line.startswith(f"{out / name}: {fault}") for line, fault in zip(lines, faults, strict=True))


def test_a_torn_line_of_raw_csv_is_dropped_and_the_rest_kept(tmp_path, capsys):
    out = _copied(tmp_path)
    whole = (out / "raw.csv").read_bytes()
    (out / "raw.csv").write_bytes(whole + b"1,2,po")
    assert _resumed(out, capsys)[0] == 0
    assert (out / "raw.csv").read_bytes().startswith(whole + b"2,1,")


def test_two_measurements_at_once_do_not_write_into_one_folder(tmp_path, capsys):
    out = tmp_path / "m"
    with alone(out):
        assert main(["--model", "tiny", "--device", "fake", "--out", str(out)]) == 2
    assert capsys.readouterr().err == f"--out {out}: another measurement writes there; wait, or name another folder\n"
    assert not out.exists()


def test_a_killed_run_has_said_what_its_raw_lines_are_of(tmp_path):
    out = tmp_path / "m"
    command = [sys.executable, "-m", "calibration.measure", "--model", "tiny", "--device", "cpu", "--out", str(out)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while not _lines(out / "raw.csv") > 1 and time.monotonic() < until:
            time.sleep(0.01)
        process.kill()
    assert json.loads((out / "meta.json").read_text())["plan_hash"]
    assert (out / "points.csv").is_file()


def test_the_bare_command_says_all_faults_of_its_options_at_once(tmp_path, capsys):
    assert main(["--model", "tiny", "--out", "", "--seed", "-1", "--budget", "0", "--device", "cpi"]) == 2
    starts = ["--out: is empty", "--seed: '-1' must be", "--budget: '0' must be", "--device: 'cpi' must be one of"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert all(line.startswith(f"python3 -m calibration.measure: argument {start}")
               for line, start in zip(lines, starts, strict=True))  # fmt: skip
    assert main(["--modle", "tiny", "--out", "x"]) == 2
    assert "--modle: unknown option; did you mean '--model'?" in capsys.readouterr().err


def test_going_on_with_nothing_is_noticed(tmp_path, capsys):
    out = tmp_path / "m"
    assert main(["--model", "tiny", "--device", "fake", "--out", str(out), "--resume"]) == 0
    assert capsys.readouterr().err.startswith(f"notice: --resume: {out} holds no measurement yet; it begins\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_a_line_that_names_the_file_and_leaves_no_partial_one(tmp_path, capsys, monkeypatch):
    def full(path, rows):
        path.write_text("op")
        Path("/dev/full").write_text("op")

    monkeypatch.setattr("calibration.harness.records.save_points", full)
    assert main(["--model", "tiny", "--device", "fake", "--out", str(tmp_path)]) == 2
    error = f"{tmp_path / 'points.csv'}: can't be written: No space left on device; --resume goes on from what is kept"
    assert capsys.readouterr().err.splitlines()[-1] == error
    assert [path.name for path in tmp_path.iterdir()] == ["raw.csv"]
