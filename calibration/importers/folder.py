"""A folder of kernel timings, its tables told apart by their columns, as the points of one calibration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from calibration.importers import aiconfigurator, vidur
from calibration.importers.imported import Imported, Reader, Shape, split
from calibration.importers.tables import columns
from calibration.points import WHOLE, Timed, linear_shapes
from simulator.errors import ConfigError
from simulator.specs import ModelSpec

# In order of preference: vidur times all of a model's own layers, aiconfigurator a grid of shapes.
FORMATS: Mapping[str, Mapping[tuple[str, ...], Reader]] = {
    "vidur": vidur.READERS,
    "aiconfigurator": aiconfigurator.READERS,
}
# Shapes to either side of a linear layer that wasn't timed itself, from which its times can be estimated.
NEIGHBOURS = 2


def formats(folder: Path) -> list[str]:
    """Which of FORMATS the folder's tables have."""
    return list(dict.fromkeys(name for name, _, _ in _tables(folder)))


def read_folder(folder: Path, *, model: ModelSpec, tp: int, form: str | None = None) -> Imported:
    """The tables of `folder` that are of a known form (or of `form` alone) and concern `model` on one of `tp` ranks.

    Where two tables hold the same operation, the first form's are taken: two methods don't mix. Linear layers of other
    shapes are kept, and all fitted, only as neighbours of those of the model that nobody timed. Of the rest a fifth is
    held out. Raises ConfigError,
    the faults of all tables at once.
    """
    known = [(path, read) for name, path, read in _tables(folder) if form in (None, name)]
    if not known:
        raise ConfigError(f"{folder}: no table with the columns of {form or ' or '.join(FORMATS)}")
    parts: list[Imported] = []
    faults: list[str] = []
    for path, read in known:
        try:
            parts.append(read(path, model, tp))
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(faults)
    own = set(linear_shapes(model, tp).values())
    rows = _relevant(_first_of_each(parts), own)
    if not rows:
        raise ConfigError(f"{folder}: its tables hold nothing of {model.name} on {tp} ranks")
    foreign = [row for row in rows if row.point.op == "linear" and (row.point.n, row.point.k) not in own]
    return Imported(
        [*split([row for row in rows if row not in foreign]), *foreign],
        {op: floor for part in parts for op, floor in part.repeat_floor_pct.items()},
        {op: note for part in reversed(parts) for op, note in part.notes.items()},
    )


def metadata(imported: Imported) -> dict[str, str]:
    """What a profile of such rows says about them: how each operation was timed, and what to beware of."""
    said = {f"timed_{op}": note for op, note in imported.notes.items()}
    if not any(row.point.op in WHOLE for row in imported.rows):
        said["host"] = "no whole step was timed: nothing between kernels"
    if any(row.l2 == "hot" for row in imported.rows if row.point.op == "decode"):
        said["caution_l2"] = (
            "decode attention re-reads the same keys and values: where they fit in the L2 cache, up to 27 % too fast "
            "against a real model, whose other layers push them out (found on an H200)"
        )
    if any(row.point.op == "linear" and row.l2 == "cold" and row.point.mode == "graph" for row in imported.rows):
        said["caution_clocks"] = (
            "linear layers were timed in bursts of a few milliseconds, before a GPU at its power cap lowers its clock: "
            "11 to 15 % too fast for large ones against a busy server (found on an H200)"
        )
    return said


def _tables(folder: Path) -> list[tuple[str, Path, Reader]]:
    """(form, file, reader) of each table, in the order of FORMATS."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    names = {path: set(columns(path)) for path in sorted(folder.glob("*.csv"))}
    return [
        (form, path, read)
        for form, readers in FORMATS.items()
        for path, there in names.items()
        for read in [next((read for needed, read in readers.items() if there.issuperset(needed)), None)]
        if read is not None
    ]


def _first_of_each(parts: Iterable[Imported]) -> list[Timed]:
    """All rows, but of an operation (for linear layers: a shape) those of the first part that has it."""
    owner: dict[tuple[str, int, int], int] = {}
    rows = []
    for number, part in enumerate(parts):
        for row in part.rows:
            if owner.setdefault((row.point.op, row.point.n, row.point.k), number) == number:
                rows.append(row)
    return rows


def _relevant(rows: Sequence[Timed], wanted: Iterable[Shape]) -> list[Timed]:
    """The rows without linear layers that are neither wanted nor neighbours of a wanted one that is missing."""
    shapes = {(row.point.n, row.point.k) for row in rows if row.point.op == "linear"}
    kept = set(wanted)
    for shape in kept - shapes:
        kept = kept | _neighbours(shape, shapes)
    return [row for row in rows if row.point.op != "linear" or (row.point.n, row.point.k) in kept]


def _neighbours(shape: Shape, shapes: Iterable[Shape]) -> set[Shape]:
    """The nearest shapes to either side along n at the same k, and along k at the same n."""
    near: set[Shape] = set()
    for axis in (0, 1):
        line = sorted(other for other in shapes if other[1 - axis] == shape[1 - axis])
        near.update([other for other in line if other[axis] < shape[axis]][-NEIGHBOURS:])
        near.update([other for other in line if other[axis] > shape[axis]][:NEIGHBOURS])
    return near
