"""Timed operators: made from their tables, fitted, and held against shapes and GPUs left out.

    python -m benchmarks.operators distil FOLDER     # FOLDER: gemm.csv, attention_forward.csv, moe.csv, ...
    python -m benchmarks.operators fit               # writes prediction/data/operators
    python -m benchmarks.operators left-out          # every timed GPU predicted from the others
    python -m benchmarks.operators evidence          # the same, and written where intervals come from

`distil` writes the compact tables of catalogue/data/operators, `fit` the surfaces with what shapes held out
of the fit say of their error (five folds by hash), and the intervals of GPUs that nobody timed.
"""

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import finegauge
from finegauge.catalogue.device_profile import FOLDER, SHAPE_COLUMNS, Timed, file_name, timed_kernels
from finegauge.catalogue.gpus import GpuSpec, gpu
from finegauge.validation.operators import ITEM_BYTES

HOME = Path(finegauge.__file__).parent
CATALOGUE = HOME / "catalogue" / "data"
FITTED = HOME / "prediction" / "data" / "operators"
TABLES = {"gemm": "gemm", "attention_forward": "attention", "moe": "experts", "collectives": "collective"}
SNAPSHOT = "2026-08-21"
NOTICE = """\
Seconds of GPU operators in this folder come from ai-dynamo/aiconfigurator
(https://github.com/ai-dynamo/aiconfigurator), its tables of measured operators, snapshot of 2026-08-21.
Copyright (c) NVIDIA Corporation & affiliates. Licensed under the Apache License, Version 2.0
(http://www.apache.org/licenses/LICENSE-2.0).
Changed: at most 1,000 shapes per GPU, number format and engine, drawn by hash; one table per GPU and kind;
microseconds with four digits. 'source' in index.csv names the folder of each kernel there.
"""
LEAST_BYTES = 2**20  # of the collectives that errors are counted of: below, latency alone
OWN_TIMINGS = "ai-dynamo/aiconfigurator"  # in the source of a best product: taken from these very timings


def distil(folder: Path) -> None:
    """Write the compact tables."""
    target = CATALOGUE / FOLDER
    target.mkdir(exist_ok=True)
    (target / "NOTICE.txt").write_text(NOTICE, "utf-8")
    index = []
    for name, kind in TABLES.items():
        cells: dict[str, dict[tuple[str, ...], dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
        seen: dict[tuple[str, str, str], tuple[int, str]] = {}
        with (folder / f"{name}.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if kind == "collective":
                    row["bytes"] = str(int(row["message_size"]) * ITEM_BYTES[row["dtype"]])
                    row["kernel_source"] = row["operation"]
                called = gpu(row["gpu"]).name
                key = tuple(row[column] for column in SHAPE_COLUMNS[kind])
                column = f"{row['dtype']} {row['kernel_source']}"
                cells[called][key][column] = f"{float(row['seconds']) * 1e6:.4g}"
                one = called, row["dtype"], row["kernel_source"]
                seen[one] = seen.get(one, (0, ""))[0] + 1, row["source"]
        for (called, dtype, kernel), (number, source) in sorted(seen.items()):
            parts = source.split("/")
            engine = "nccl" if kind == "collective" else parts[2]
            index.append((called, kind, dtype, kernel, engine, number, source, SNAPSHOT))
        for called, rows in cells.items():
            columns = sorted({column for row in rows.values() for column in row})
            order = sorted(
                rows, key=lambda key: [float(c) if c.replace(".", "").isdigit() else c for c in key]
            )
            lines = [",".join((*SHAPE_COLUMNS[kind], *columns))]
            lines += [",".join((*key, *(rows[key].get(c, "") for c in columns))) for key in order]
            (CATALOGUE / file_name(called, kind)).write_text("\n".join(lines) + "\n", "utf-8")
    lines = [",".join(Timed._fields), *(",".join(map(str, one)) for one in index)]
    (target / "index.csv").write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{len(index)} kernels, {sum(one[5] for one in index)} timings")


def _fitted(one: Timed) -> tuple[Timed, dict[str, Any]]:
    """Return one kernel's entry of the file of its GPU."""
    import numpy

    from benchmarks.operator_fits import fit, held_out, known

    data = known(one)
    found = fit(data)
    errors = held_out(data, found)
    if one.kind == "collective":
        errors = errors[data.sizes["bytes"] > LEAST_BYTES]
    low, high = numpy.exp(numpy.quantile(errors, (0.1, 0.9)))
    weights = " ".join(f"{weight:.4g}" for weight in found.weights)
    off = numpy.abs(numpy.expm1(-errors))  # of the prediction, relative to what was timed
    return one, {
        "constants": found.constants,
        "interval": [round(float(low), 4), round(float(high), 4)],
        "median_error": round(float(numpy.median(off)), 4),
        "p90_error": round(float(numpy.quantile(off, 0.9)), 4),
        "rows": one.rows,
        "weights": weights,
    }


def write_fits(processes: int, only: str) -> None:
    """Fit every kernel, or those of one kind, and write the files of all GPUs."""
    FITTED.mkdir(exist_ok=True)
    kernels = sorted(timed_kernels(), key=lambda one: -one.rows)
    kernels = [one for one in kernels if only in ("", one.kind)]
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    with Pool(processes) as pool:
        for one, entry in pool.imap(_fitted, kernels):
            found[one.gpu][one.kind][one.column] = entry
    for called, kinds in found.items():
        path = FITTED / f"{called.replace(' ', '_')}.json"
        before = json.loads(path.read_text("utf-8")) if path.exists() else {}
        path.write_text(json.dumps({**before, **kinds}, indent=1) + "\n", "utf-8")
    errors: dict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
    for one in kernels:
        entry = found[one.gpu][one.kind][one.column]
        errors[one.kind, one.dtype].append((entry["median_error"], entry["p90_error"], one.rows))
    print("shapes held out, five folds: mean over kernels of the median and 90th percentile of errors")
    for (kind, dtype), all_of in sorted(errors.items()):
        medians, tails, rows = zip(*all_of, strict=True)
        print(f"  {kind:10} {dtype:10} {sum(medians) / len(medians):6.1%} {sum(tails) / len(tails):6.1%}"
              f"  {len(medians)} kernels, {sum(rows)} timings")  # fmt: skip


def left_out(*, write: bool) -> None:
    """Predict every timed GPU from the others; with `write`, keep errors and intervals."""
    import numpy

    from benchmarks.operator_fits import known
    from finegauge.errors import UnsupportedError
    from finegauge.prediction.timed_operators import seconds_of, source_for

    path = FITTED / "evidence.json"
    if write:  # what is asked for before it is known
        wide = {kind: {"other": [0.6, 1.6]} for kind in SHAPE_COLUMNS}
        path.write_text(json.dumps({"intervals": wide, "errors": []}), "utf-8")
    errors: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
    sources: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    regimes: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for one in timed_kernels():
        data, key = known(one), (one.gpu, one.kind, one.dtype)
        errors[key] += []
        try:
            source = source_for(_as_untimed(one.gpu), one.kind, one.dtype, one.kernel, "", (one.gpu,))
        except UnsupportedError:  # a kernel, or a format, that nobody else timed
            continue
        found = numpy.log(data.seconds / seconds_of(source, data.sizes))
        if one.kind == "collective":
            found = found[data.sizes["bytes"] > LEAST_BYTES]
        errors[key].append(found)
        sources[key] |= {fit.timed.gpu for fit, _ in source.parts}
        regimes[one.kind, source.evidence].append(found)
    rows = [_error_row(key, parts, sorted(sources[key])) for key, parts in errors.items()]
    for row in rows:
        print(*(f"{value:.3f}" if isinstance(value, float) else value for value in row.values()), sep="\t")
    intervals: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for (kind, stands), parts in sorted(regimes.items()):
        together = numpy.concatenate(parts)
        off = numpy.abs(numpy.expm1(-together))
        low, high = numpy.exp(numpy.quantile(together, (0.1, 0.9)))
        intervals[kind][stands] = [round(float(low), 3), round(float(high), 3)]
        print(kind, stands, intervals[kind][stands], f"median {numpy.median(off):.1%}", len(together))
    for kind, dtype in sorted({key[1:] for key in errors}):
        parts = [part for key, all_of in errors.items() if key[1:] == (kind, dtype) for part in all_of]
        if parts:
            off = numpy.abs(numpy.expm1(-numpy.concatenate(parts)))
            middle, tail = numpy.quantile(off, (0.5, 0.9))
            print(f"{kind} {dtype}: GPU left out, median {middle:.1%}, p90 {tail:.1%}")
    if write:
        path.write_text(json.dumps({"intervals": intervals, "errors": rows}, indent=1) + "\n", "utf-8")


def _as_untimed(name: str) -> GpuSpec:
    """Return a GPU without what the catalogue has from these timings."""
    spec = gpu(name)
    return spec._replace(measured_matmul_flops_per_s=None) if OWN_TIMINGS in spec.source else spec


def _error_row(key: tuple[str, str, str], parts: list[Any], sources: list[str]) -> dict[str, Any]:
    """Return one GPU, kind and format: its kernels together."""
    import numpy

    called, kind, dtype = key
    fits = json.loads((FITTED / f"{called.replace(' ', '_')}.json").read_text("utf-8"))[kind]
    own = [fits[one.column] for one in timed_kernels() if (one.gpu, one.kind, one.dtype) == key]
    number = sum(one["rows"] for one in own)
    off = numpy.abs(numpy.expm1(-numpy.concatenate(parts))) if parts else None
    return {
        "gpu": called,
        "kind": kind,
        "dtype": dtype,
        "rows": number,
        "held_out_median": round(sum(one["median_error"] * one["rows"] for one in own) / number, 4),
        "held_out_p90": round(sum(one["p90_error"] * one["rows"] for one in own) / number, 4),
        "left_out_median": round(float(numpy.median(off)), 4) if off is not None else None,
        "left_out_p90": round(float(numpy.quantile(off, 0.9)), 4) if off is not None else None,
        "from": sources,
    }


def main(arguments: Iterable[str] | None = None) -> int:
    """Do what is asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("distil", "fit", "evidence", "left-out"))
    parser.add_argument("folder", nargs="?", type=Path, help="of the tables, for distil")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kind", default="", choices=("", *SHAPE_COLUMNS), help="of fit: no other kind")
    asked = parser.parse_args(None if arguments is None else list(arguments))
    if asked.what == "distil":
        if asked.folder is None:
            parser.error("distil needs the folder of the tables")
        distil(asked.folder)
    elif asked.what == "fit":
        write_fits(asked.processes, asked.kind)
        left_out(write=True)
    else:
        left_out(write=asked.what == "evidence")
    return 0


if __name__ == "__main__":
    sys.exit(main())
