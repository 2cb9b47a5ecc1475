"""The commands that browse the catalogue: models, gpus, offers, datasets.

Each lists by default (`finegauge gpus`), filters by options, and shows one row whole with `show`.
With `--json` the same rows come as JSON, every number in SI units; nothing else is printed then.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from finegauge import units
from finegauge.answers.catalogue import (
    SORTS,
    found_datasets,
    found_gpus,
    found_models,
    found_offers,
    frameworks_answer,
    offers_json,
    plain,
)
from finegauge.cli.run_options import json_option, say, show
from finegauge.documents import json_text
from finegauge.errors import InputError, shown
from finegauge.render.number_format import dollars

if TYPE_CHECKING:
    from finegauge.catalogue.gpus import GpuSpec
    from finegauge.catalogue.models import ModelFigures
    from finegauge.catalogue.offers import Offer


class ListByDefault(click.Group):
    """A group whose `list` need not be spelled: `gpus --vendor AMD` is `gpus list --vendor AMD`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` before arguments that start with no command."""
        if not args or (args[0] not in self.commands and args[0] not in {"--help", "-h"}):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def print_json(value: object) -> None:
    """Print `value` as indented JSON."""
    say(json_text(value))


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    num_text: int = 1,
    ends_in_text: bool = False,
    first_to_go: tuple[int, ...] = (),
) -> None:
    """Print a table as `Table` describes it; in a pipe, one line for each of its rows."""
    from finegauge.render.report import Table
    from finegauge.render.terminal import UNLIMITED, has_width, table_lines

    cells = tuple(map(tuple, rows))
    table = Table("", tuple(headings), cells, num_text, ends_in_text, first_to_go=first_to_go)
    say(table_lines(table, 0 if has_width() else UNLIMITED))


def print_facts(title: str, rows: Mapping[str, str]) -> None:
    """Print one row whole: its title, then a line per fact."""
    from finegauge.render.report import Table, section
    from finegauge.render.terminal import section_lines

    table = Table(title, ("", ""), tuple(rows.items()), ends_in_text=True, indent=2)
    say(section_lines(section("facts", title, table)))


def footer(num_shown: int, num_known: int, noun: str, hint: str) -> None:
    """Print how many of the known rows are shown, and where to look next."""
    from finegauge.render.terminal import wrapped

    say(wrapped(f"{num_shown:,} of {num_known:,} {noun}; {hint}.", indent="  "))


def tera(rate: float | None) -> str:
    """Return a rate in units of 1e12, or "-" if it is not known."""
    return "-" if rate is None else f"{rate / 1e12:.1f}"


def scaled(value: float | None, unit: float) -> str:
    """Return `value` in whole units of `unit`, or "-" if it is not known."""
    return "-" if value is None else f"{value / unit:.0f}"


def number(value: float | None) -> str:
    """Return `value` as a whole number, or "-" if it is not known."""
    return scaled(value, 1.0)


_DEFAULT_ROWS = 40


# --- gpus


@click.group(cls=ListByDefault)
def gpus() -> None:
    """List accelerators, or show one: finegauge gpus [--vendor NAME], finegauge gpus show NAME."""


@gpus.command("list")
@click.argument("pattern", default="")
@click.option("--vendor", help="NVIDIA, AMD, Intel, Google, AWS; or user, for your own.")
@json_option
def list_gpus(pattern: str, vendor: str | None, *, as_json: bool) -> None:
    """List the accelerators whose name or alias contains PATTERN."""
    from finegauge.catalogue.gpus import gpus as all_gpus

    found = found_gpus(pattern, vendor or "")
    if as_json:
        print_json([plain(spec) for spec in found])
        return
    columns = ["name", "GB", "usable\nGiB", "TB/s", "bf16\nTFLOP/s", "fp8", "W", "architecture", "year"]
    print_table(columns, [_gpu_cells(spec) for spec in found])
    footer(len(found), len(all_gpus()), "GPUs", "dense rates; 'finegauge gpus show NAME' tells sources")


def _gpu_cells(spec: "GpuSpec") -> list[str]:
    return [
        spec.name,
        f"{spec.memory_bytes / units.GB:.0f}",
        f"{spec.usable_bytes / units.GIB:.1f}",
        f"{spec.memory_bytes_per_s / 1e12:.2f}",
        tera(spec.flops_per_s.get("bf16")),
        tera(spec.flops_per_s.get("fp8")),
        number(spec.board_power_w),
        spec.architecture,
        str(spec.launch_year or "-"),
    ]


@gpus.command("show")
@click.argument("name")
@json_option
def show_gpu(name: str, *, as_json: bool) -> None:
    """Show all that is known of one accelerator, by name, alias or YAML file."""
    from finegauge.catalogue.gpus import counted, gpu

    spec = gpu(counted(name)[0])
    if as_json:
        print_json(plain(spec))
        return
    usable = f"{units.gib(spec.usable_bytes)} usable ({spec.usable_from})"
    rates = ", ".join(f"{dtype} {tera(rate)}" for dtype, rate in spec.flops_per_s.items())
    rate = spec.nvlink_bytes_per_s
    link = f"{rate / units.GB:.0f} GB/s one way" if rate else "none known"
    rows = {
        "also called": ", ".join(spec.aliases),
        "vendor": f"{spec.vendor} {spec.architecture} {spec.compute_capability}".strip(),
        "memory": f"{spec.memory_bytes / units.GB:.0f} GB as sold, {usable}",
        "bandwidth": f"{spec.memory_bytes_per_s / 1e12:.3f} TB/s",
        "dense peaks (TFLOP/s)": rates or "-",
        "best bf16 matmul": f"{tera(spec.measured_matmul_flops_per_s)} TFLOP/s measured",
        "SMs, boost clock, L2": f"{number(spec.num_sms)}, {scaled(spec.boost_hz, 1e6)} MHz, "
        f"{scaled(spec.l2_bytes, 2**20)} MiB",
        "NVLink / peers, PCIe": f"{link}; PCIe {spec.pcie or '-'}",
        "board power, idle": f"{number(spec.board_power_w)} W, {number(spec.idle_power_w)} W",
        "form, launched": f"{spec.form_factor or '-'}, {spec.launch_year or '-'}",
        "notes": spec.notes or "-",
        "source": f"{spec.source} (confidence {spec.confidence}, read {spec.checked or '-'})",
    }
    print_facts(spec.name, {name: text for name, text in rows.items() if not text.startswith("-")})


# --- models


@click.group(cls=ListByDefault)
def models() -> None:
    """List models, or show one: finegauge models [PATTERN], finegauge models show NAME|config.json."""


@models.command("list")
@click.argument("pattern", default="")
@json_option
def list_models(pattern: str, *, as_json: bool) -> None:
    """List the models whose name, alias or model_type contains PATTERN."""
    from finegauge.catalogue.models import models as all_models

    found = found_models(pattern)
    if as_json:
        print_json([plain(figures) for figures in found])
        return
    rows = []
    for one in found:
        size = units.count(one.parameters) if one.parameters else "-"
        rows.append([one.name, _short_name(one), str(one.config.get("model_type", "-")), size])
    print_table(["name", "short name", "model_type", "parameters"], rows, num_text=3, first_to_go=(2, 1))
    footer(len(found), len(all_models()), "models", "'finegauge models show NAME' counts one")


def _short_name(figures: "ModelFigures") -> str:
    """Return the shortest alias that is the model's own, where it has one, and not that of a fine-tune."""
    own = figures.name.casefold().rpartition("/")[2].removeprefix("meta-")[:7]
    return min(figures.aliases, key=lambda alias: (not alias.startswith(own), len(alias)), default="")


@models.command("show")
@click.argument("name")
@json_option
def show_model(name: str, *, as_json: bool) -> None:
    """Count one model: by name, alias, Hugging Face id, config.json, or the folder that holds it."""
    from finegauge.catalogue.models import model
    from finegauge.formats.reading import read
    from finegauge.model.families import architecture
    from finegauge.render.terminal import wrapped

    run = read(name, ("phase=evaluate",))  # which quantised copies are held for, too
    figures = model(run.model)
    built = architecture(figures.config)
    layers = dict(built.layers_by_kind())
    if as_json:
        counts = {
            "name": figures.name,
            "model_type": built.model_type,
            "parameters": built.num_parameters,
            "active_parameters": built.num_active_parameters,
            "layers": layers,
        }
        rest = {key: value for key, value in plain(figures).items() if key not in counts}
        print_json(counts | rest)
        return
    counted = "as transformers counts" if figures.parameters == built.num_parameters else ""
    rows = {
        "also called": ", ".join(figures.aliases) or "-",
        "model_type": built.model_type,
        "parameters": f"{built.num_parameters:,} ({units.count(built.num_parameters)}) {counted}".strip(),
        "active per token": f"{built.num_active_parameters:,} ({units.count(built.num_active_parameters)})",
        "layers": ", ".join(f"{count} x {kind}" for kind, count in layers.items()),
        "published": f"{figures.published_parameters:,}" if figures.published_parameters else "-",
        "source": f"{figures.source}" + (f" (read {figures.checked})" if figures.checked else ""),
    }
    print_facts(figures.name, rows)
    for warning in run.warnings:
        say(wrapped(warning, indent="  "))


# --- offers


@click.command()
@click.argument("card", default="", metavar="[GPU]")
@click.option("--gpu", "gpu_name", help="A GPU, or a family: h100 is every H100.")
@click.option("--provider", help="aws, azure, gcp, lambda, runpod, ...")
@click.option("--region", help="As the provider writes it: us-east-1.")
@click.option("--count", "gpu_count", type=click.IntRange(min=1), help="GPUs per instance, exactly.")
@click.option("--spot", is_flag=True, help="Only offers with a spot price, ranked by it.")
@click.option("--sort", type=click.Choice(SORTS), default="gpu-price")
@click.option("--limit", type=click.IntRange(min=0), default=_DEFAULT_ROWS, help="Rows to print; 0 for all.")
@click.option("--refresh", is_flag=True, help="Fetch today's prices into your cache first.")
@json_option
def offers(
    card: str,
    gpu_name: str | None,
    provider: str | None,
    region: str | None,
    gpu_count: int | None,
    sort: str,
    limit: int,
    *,
    spot: bool,
    refresh: bool,
    as_json: bool,
) -> None:
    """List what GPUs cost per hour, with provider, region and date of every price."""
    from finegauge.catalogue import offers as catalogue

    if refresh:
        _refresh(quiet=as_json)
    every = catalogue.offers()
    found = found_offers(gpu_name or card, provider or "", region or "", gpu_count, spot=spot, sort=sort)
    if as_json:
        print_json(offers_json(found))
        return
    shown = found[:limit] if limit else found
    columns = ["provider", "instance", "GPUs", "region", "$/h", "spot $/h", "$/GPU h", "date"]
    rows = [_offer_cells(offer, spot=spot) for offer in shown]
    print_table(columns, rows, num_text=4, first_to_go=(1, 7, 4 if spot else 5, 6, 3))
    more = "" if len(shown) == len(found) else f", {len(shown)} printed (--limit 0: all)"
    footer(
        len(found),
        len(every),
        "offers",
        f"$ of the whole instance; ~ a card's price times their number; * far from others{more}",
    )
    if warning := catalogue.stale_warning(found):
        from finegauge.render.terminal import wrapped

        say(wrapped(warning, indent="  "), err=True)


def _refresh(*, quiet: bool) -> None:
    from finegauge.catalogue.refresh import refresh_offers

    done = refresh_offers()
    if not quiet:
        say(f"Fetched {done.num_offers:,} offers of {', '.join(done.fetched)} ({done.date}).")
    if done.num_skipped:
        say(f"{done.num_skipped:,} rows are broken and left out.", err=True)
    for failure in done.failed:
        say(f"Not fetched: {failure}; the prices at hand stay in use.", err=True)


def _offer_cells(offer: "Offer", *, spot: bool) -> list[str]:
    price = offer.usd_per_h(spot=spot)
    per_gpu = price / offer.gpu_count if price is not None and offer.gpu_count else None
    cards = f"{offer.gpu_count or 'part of'} x {offer.gpu or offer.gpu_printed}"
    seller = offer.provider if offer.tier == "on-demand" else f"{offer.provider} {offer.tier}"
    instance = "-" if offer.instance_type.startswith(f"{offer.gpu_count}x ") else offer.instance_type
    far, about = "*" if offer.outlier else "", "~" if offer.is_scaled else ""
    rates = [offer.on_demand_usd_per_h, offer.spot_usd_per_h]
    prices = [dollars(usd) if usd is None else f"{about}{dollars(usd)}" for usd in rates] + [dollars(per_gpu)]
    prices[0] += far
    return [seller, instance, cards, offer.region, *prices, offer.date]


# --- datasets

BINS = 12  # of a data set's lengths
KNOWN_AS = {"mean": "mean, spread", "summary": "median, spread", "count": "samples only"}


@click.group(cls=ListByDefault)
def datasets() -> None:
    """List data sets by token lengths, or show one: finegauge datasets, finegauge datasets show NAME."""


@datasets.command("list")
@click.argument("pattern", default="")
@json_option
def list_datasets(pattern: str, *, as_json: bool) -> None:
    """List the data sets whose name contains PATTERN."""
    from finegauge.catalogue.datasets import datasets as all_datasets

    found = found_datasets(pattern)
    if as_json:
        print_json([plain(each) for each in found])
        return
    rows = []
    for one in found:
        tokens = map(number, (one.median_tokens, one.mean_tokens, one.max_tokens))
        rows.append([one.name, f"{one.num_samples:,}", *tokens, KNOWN_AS.get(one.kind, one.kind)])
    columns = ["name", "examples", "median tokens", "mean", "longest", "known as"]
    print_table(columns, rows, ends_in_text=True, first_to_go=(2, 4, 3))
    footer(len(found), len(all_datasets()), "data sets", "your own: a CSV of 'length,count' lines")


@datasets.command("show")
@click.argument("name")
@json_option
def show_dataset(name: str, *, as_json: bool) -> None:
    """Show one data set's lengths, by name or by file (CSV of length,count, or YAML)."""
    from finegauge.catalogue.datasets import SPREAD, dataset, described

    found = described(name) or dataset(name)
    if as_json:
        print_json(plain(found))
        return
    rows = {
        "examples": f"{found.num_samples:,}",
        "tokens": f"median {number(found.median_tokens)}, mean {number(found.mean_tokens)}, "
        f"longest {number(found.max_tokens)}",
        "known as": KNOWN_AS.get(found.kind, found.kind)
        + (": log-normal about it" if found.kind in SPREAD else ""),
        "counted with": found.tokenizer,
        "source": f"{found.source}" + (f" (read {found.checked})" if found.checked else ""),
    }
    print_facts(found.name, rows)
    for label, share in _histogram(found.lengths):
        say(f"  {label:>11}  {'█' * round(share * 60)} {share:.1%}")


def _histogram(lengths: Sequence[tuple[int, int]]) -> Iterable[tuple[str, float]]:
    """Yield (range of tokens, share of the examples) for equal ranges up to the 99th percentile."""
    from itertools import accumulate

    total = sum(count for _, count in lengths)
    below = list(accumulate(count for _, count in lengths))
    top = next((length for (length, _), seen in zip(lengths, below, strict=True) if seen >= 0.99 * total), 0)
    width = max(1, -(-top // BINS))
    for start in range(0, top, width) if total else ():
        inside = sum(count for length, count in lengths if start < length <= start + width)
        yield f"{start + 1}-{start + width}", inside / total


# --- frameworks


@click.command()
@click.argument("pattern", default="", metavar="[NAME]")
@json_option
def frameworks(pattern: str, *, as_json: bool) -> None:
    """List training frameworks: whose files are read and written, and the defaults of each."""
    from finegauge.render.device_profile import frameworks_report

    answer = frameworks_answer(pattern)
    if not answer.frameworks:
        raise InputError(f"No framework is called {shown(pattern)}; 'finegauge frameworks' lists them.")
    show("frameworks", answer, frameworks_report, as_json=as_json)


# --- examples


@click.command()
@click.argument("name", default="")
@click.option("--to", "folder", metavar="DIR", help="Copy it there, with the small models that it names.")
@json_option
def examples(name: str, folder: str | None, *, as_json: bool) -> None:
    """List the examples that come with FineGauge, print one, or copy it: finegauge examples tiny_moe --to .

    Without NAME, --to copies them all.
    """
    from finegauge.catalogue import examples as known

    names = [name] if name else list(known.examples())
    if folder is not None:
        written = [path for one in names for path in known.copy(one, folder)]
        if as_json:
            print_json([{"path": path} for path in written])
        else:
            say("\n".join(["Wrote:", *(f"  {path}" for path in written)]))
    elif as_json:
        print_json(
            [{"name": one, "about": known.about(one), "text": known.example_text(one)} for one in names]
        )
    elif name:
        say(known.example_text(name).rstrip("\n"))
    else:
        print_table(
            ["example", "what it shows"], [[one, known.about(one)] for one in names], ends_in_text=True
        )
        say("\n'finegauge examples NAME' prints one, 'finegauge examples NAME --to DIR' copies it.")
