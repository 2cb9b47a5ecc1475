"""What `deploy/` holds: a manifest that Kubernetes' own schemas take, a proxy fit for the page."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from finegauge.cli import root
from finegauge.web import workers
from finegauge.web.guard import PROBES
from finegauge.web.workers import lanes

kubernetes_validate = pytest.importorskip("kubernetes_validate")

FOLDER = Path(__file__).parents[3]
MANIFEST = FOLDER / "deploy" / "kubernetes.yaml"
NGINX = (FOLDER / "deploy" / "nginx.conf").read_text("utf-8")
RESOURCES: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFEST.read_text("utf-8")))
KINDS = {one["kind"]: one for one in RESOURCES}
(CONTAINER,) = KINDS["Deployment"]["spec"]["template"]["spec"]["containers"]
OLDEST = "1.25"  # of the schemas that the package carries


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("kind", list(KINDS))
def test_the_manifest_is_what_kubernetes_reads(kind: str, version: str) -> None:
    assert version.startswith(kubernetes_validate.validate(KINDS[kind], version, strict=True))


@pytest.mark.parametrize("damage", [{"containers": "none"}, {"container": []}])
def test_a_damaged_manifest_is_refused(damage: dict[str, Any]) -> None:
    pod = {**KINDS["Deployment"]["spec"]["template"]["spec"], **damage}
    broken = {**KINDS["Deployment"]}
    broken["spec"] = {**broken["spec"], "template": {**broken["spec"]["template"], "spec": pod}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, OLDEST, strict=True)


def test_its_parts_name_each_other() -> None:
    (port,) = CONTAINER["ports"]
    (served,) = KINDS["Service"]["spec"]["ports"]
    assert f"--port={port['containerPort']}" in CONTAINER["args"]
    assert served["targetPort"] == port["name"]
    labels = KINDS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment"):
        spec = KINDS[kind]["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert selector.get("matchLabels", selector) == labels, kind
    (rule,) = KINDS["Ingress"]["spec"]["rules"]
    assert f"--allow-host={rule['host']}" in CONTAINER["args"]
    (secret,) = CONTAINER["env"]
    assert f"--token-variable={secret['name']}" in CONTAINER["args"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = CONTAINER[probe]["httpGet"]
        assert asked["path"] in PROBES
        assert asked["port"] == port["name"]


def options(texts: list[str]) -> Iterator[str]:
    """Yield the names of options."""
    yield from (text.partition("=")[0] for text in texts if text.startswith("--"))


def test_its_options_exist_and_its_user_is_the_images() -> None:
    serve = root.get_command(click.Context(root), "serve")
    assert serve is not None
    known = {name for param in serve.params for name in param.opts}
    said = re.findall(r"--[a-z][a-z-]+", NGINX)
    assert len(said) >= 4
    assert {*options(CONTAINER["args"]), *said} <= known
    user = KINDS["Deployment"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert f"--uid {user}" in (FOLDER / "Dockerfile").read_text("utf-8")


def test_the_proxy_passes_what_the_page_reads() -> None:
    (body,) = re.findall(r"client_max_body_size (\d+)k;", NGINX)
    assert int(body) * 1024 == workers.MAX_BODY_BYTES
    (header,) = re.findall(r"large_client_header_buffers \d+ (\d+)k;", NGINX)
    assert int(header) * 1024 > workers.MAX_QUERY_BYTES
    (patience,) = re.findall(r"proxy_read_timeout (\d+)s;", NGINX)
    assert int(patience) > max(lane.within_s for lane in lanes())
    assert "Host $http_host;" in NGINX
