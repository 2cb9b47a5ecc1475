"""SkyPilot's task: the machines of an offer, what is installed on them, and the command that trains."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from finegauge.catalogue.gpus import cloud_machine
from finegauge.catalogue.gpus import gpu as find
from finegauge.catalogue.offers import Offer
from finegauge.catalogue.tables import read_shipped
from finegauge.errors import FineGaugeError
from finegauge.formats import launcher_files
from finegauge.formats.sheet import Sheet, mapping_in, without
from finegauge.run.run import Run

FILE = "skypilot.yaml"
COMMAND = f"sky launch {FILE}"
# Names that its catalogue of clouds has; a card not listed there is called as ours without form factor.
_CARDS: dict[str, str] = json.loads(read_shipped("skypilot_gpus.json"))
_CLOUDS = {name: name for name in ("aws", "azure", "gcp", "lambda", "runpod", "verda")} | {
    "digitalocean": "do",
    "vast-ai": "vast",
}
_NAMED_ALIKE = ("aws", "azure", "gcp", "lambda")  # whose instances it calls as they do themselves
_FRONT = 'MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)'


def accelerators(keys: Mapping[str, Any]) -> tuple[str, int]:
    """Return the GPU that a task asks for, the first where it takes several, and how many a node has."""
    asked = mapping_in(keys, "resources")
    for several in ("any_of", "ordered"):
        listed = asked.get(several)
        if isinstance(listed, list) and listed and isinstance(listed[0], Mapping):
            asked = {**asked, **listed[0]}
    named = asked.get("accelerators")
    if not named and (rented := cloud_machine(str(asked.get("instance_type") or ""))) is not None:
        return rented.gpu, rented.num_gpus
    if isinstance(named, Mapping) and named:
        card, number = next(iter(named.items()))
        named = f"{card}:{number}" if number else str(card)
    named = named[0] if isinstance(named, list) and named else named
    card, _, number = str(named or "").partition(":")
    ours = {theirs.casefold(): name for name, theirs in reversed(_CARDS.items())}
    return ours.get(card.strip().casefold(), card.strip()), int(number) if number.strip().isdecimal() else 1


def task(run: Run, sheet: Sheet, offer: Offer | None, *, spot: bool = False) -> dict[str, Any]:
    """Return the task that starts `sheet` on the machines of `offer`, else of the run's own GPU."""
    gpu = (offer.gpu if offer else "") or run.gpu
    provider = offer.provider if offer else run.provider
    per_node = offer.gpu_count if offer and offer.gpu_count else launcher_files.per_node(run)
    region = offer.region if offer else run.region
    cloud = _CLOUDS.get(provider or "")
    resources = without(
        {
            "cloud": cloud,
            "region": region if cloud and region not in (None, "any") else None,
            "instance_type": offer.instance_type if offer and cloud in _NAMED_ALIKE else None,
            "accelerators": f"{card(gpu)}:{per_node}" if gpu else None,
            "use_spot": spot,
        }
    )
    several = run.num_nodes > 1
    front = [f"export {_FRONT}", 'export NODE_RANK="$SKYPILOT_NODE_RANK"'] if several else []
    return {
        "name": "finegauge",
        "workdir": ".",
        "resources": resources,
        "num_nodes": run.num_nodes,
        "setup": f"pip install {sheet.packages}\n",
        "run": "\n".join([*front, sheet.command]) + "\n",
    }


def notes(run: Run, offer: Offer | None) -> tuple[str, ...]:
    """Return what the task leaves to its reader."""
    provider = offer.provider if offer else run.provider
    found = []
    if not (offer.gpu if offer else run.gpu):
        found.append("The run names no GPU; set resources.accelerators of the SkyPilot task.")
    if provider and provider not in _CLOUDS:
        found.append(f"SkyPilot is not known to rent from {provider}; its task leaves the cloud open.")
    return tuple(found)


def card(gpu: str | None) -> str:
    """Return SkyPilot's name of a GPU of the catalogue."""
    name = str(gpu)
    with suppress(FineGaugeError):
        name = find(name).name
    return _CARDS.get(name, name.replace(" ", ""))
