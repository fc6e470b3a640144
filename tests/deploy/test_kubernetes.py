"""The Kubernetes manifests: their settings, command lines, variables and probes are those of the program."""

from __future__ import annotations

import shutil
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import SecretStr

from command_lines import complaint_about_words
from tailrace.dashboard.web.access import OPEN_PATHS, Access
from tailrace.monitor import Site, serve_endpoint
from tailrace.owned import run_guarded
from tailrace.settings import ENVIRONMENT_PREFIX, Settings
from tailrace.settings_source import file_keys
from waiting import SECONDS

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
DOCUMENTS: list[dict[str, Any]] = [
    document
    for file in [*sorted(FOLDER.glob("*.yaml")), FOLDER / "producer" / "producer.yaml"]
    for document in yaml.safe_load_all(file.read_text())
]
DEPLOYMENTS = [document for document in DOCUMENTS if document["kind"] == "Deployment"]
VARIABLES = {f"{ENVIRONMENT_PREFIX}{key.upper().replace('.', '__')}_FILE" for key in file_keys(Settings)}
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def named(deployment: dict[str, Any]) -> str:
    return str(deployment["metadata"]["name"])


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    [only] = deployment["spec"]["template"]["spec"]["containers"]
    return dict(only)


def settings_of(deployment: dict[str, Any]) -> Settings:
    """The settings that its pods get: the file of the config map, with the variables over it."""
    volume, _ = deployment["spec"]["template"]["spec"]["volumes"]
    mount, _ = container(deployment)["volumeMounts"]
    config_map = next(
        each
        for each in DOCUMENTS
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == volume["configMap"]["name"]
    )
    words = container(deployment)["args"]
    [file] = config_map["data"]
    assert words[words.index("--config") + 1] == f"{mount['mountPath']}/{file}"
    return Settings.model_validate(tomllib.loads(config_map["data"][file]))


def test_there_is_one_for_each_process_that_stays() -> None:
    assert {container(each)["name"] for each in DEPLOYMENTS} == {"producer", "gateway", "dashboard"}


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=named)
def test_command_lines_settings_and_variables_are_understood(deployment: dict[str, Any]) -> None:
    assert complaint_about_words(container(deployment)["args"]) is None
    settings_of(deployment)
    assert {variable["name"] for variable in container(deployment)["env"]} <= VARIABLES


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=named)
def test_secrets_are_files_of_the_secret_that_is_made(deployment: dict[str, Any]) -> None:
    made = next(each for each in DOCUMENTS if each["kind"] == "Kustomization")["secretGenerator"][0]
    keys = {literal.partition("=")[0] for literal in made["literals"]}
    _, volume = deployment["spec"]["template"]["spec"]["volumes"]
    _, mount = container(deployment)["volumeMounts"]
    assert volume["secret"]["secretName"] == made["name"]
    mounted = {f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"] if item["key"] in keys}
    assert {variable["value"] for variable in container(deployment)["env"]} == mounted


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.yaml")), ids=lambda file: file.name)
def test_manifests_are_as_the_schemas_of_the_api_demand(file: Path) -> None:
    """Strictly: a field that the API does not know is an error. Custom resources have no schema there."""
    for document in yaml.safe_load_all(file.read_text()):
        if document["apiVersion"].split("/")[0] not in ("kustomize.config.k8s.io", "monitoring.coreos.com"):
            kubernetes_validate.validate(document, "1.31", strict=True)


def test_a_wrong_field_is_found() -> None:
    wrong = {**DEPLOYMENTS[0], "spec": {**DEPLOYMENTS[0]["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.31", strict=True)


def test_network_policies_and_monitors_name_labels_and_ports_that_there_are() -> None:
    ports = {port["name"] for each in DEPLOYMENTS for port in container(each)["ports"]}
    components = {container(each)["name"] for each in DEPLOYMENTS}
    for policy in (each for each in DOCUMENTS if each["kind"] == "NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            assert {port["port"] for port in rule["ports"]} <= ports
        selector = policy["spec"]["podSelector"]
        named_there = {selector.get("matchLabels", {}).get("app.kubernetes.io/component")} - {None}
        for expression in selector.get("matchExpressions", []):
            named_there |= set(expression["values"])
        assert named_there <= components
    monitor = yaml.safe_load((FOLDER / "monitoring" / "service-monitor.yaml").read_text())["spec"]
    services = [each for each in DOCUMENTS if each["kind"] == "Service"]
    chosen = [
        s for s in services if monitor["selector"]["matchLabels"].items() <= s["metadata"].get("labels", {}).items()
    ]
    assert {each["metadata"]["name"] for each in chosen} == {"tailrace-producer", "tailrace-gateway"}
    for service in chosen:
        assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_a_second_producer_has_settings_of_its_own() -> None:
    folder = FOLDER / "overlays" / "payments"
    overlay = yaml.safe_load((folder / "kustomization.yaml").read_text())
    patch = yaml.safe_load(overlay["patches"][0]["patch"])
    kubernetes_validate.validate(patch, "1.31", strict=True)
    settings = Settings.model_validate(tomllib.loads(patch["data"]["tailrace.toml"]))
    first = settings_of(next(each for each in DEPLOYMENTS if container(each)["name"] == "producer"))
    assert settings.capture.name != first.capture.name
    # kustomize reads folders from elsewhere, and no single files.
    assert all((folder / each / "kustomization.yaml").resolve().exists() for each in overlay["resources"])


def built(folder: Path) -> list[dict[str, Any]]:
    done = run_guarded(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here to put them together")
def test_two_producers_share_no_service_and_no_budget() -> None:
    """A pod with two budgets cannot be evicted, and a Service with pods of two streams answers for either."""
    made = [*built(FOLDER), *built(FOLDER / "overlays" / "payments")]
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in made if each["kind"] == "Deployment"]
    for kind in ("Service", "PodDisruptionBudget", "Deployment"):
        selectors = [each["spec"]["selector"] for each in made if each["kind"] == kind]
        for labels in pods:
            chosen = [each for each in selectors if each.get("matchLabels", each).items() <= labels.items()]
            assert len(chosen) == 1 or (kind == "PodDisruptionBudget" and not chosen), (kind, labels)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=named)
def test_pods_get_no_variables_for_services(deployment: dict[str, Any]) -> None:
    """Those of a Service called tailrace-... look like settings."""
    assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=named)
def test_ports_are_those_that_the_settings_open(deployment: dict[str, Any]) -> None:
    settings = settings_of(deployment)
    section = settings.gateway if container(deployment)["name"] == "gateway" else settings.monitor
    metrics_port = section.metrics_port
    listening = {
        "metrics": (settings.monitor.metrics_address, metrics_port),
        "mongodb": (settings.gateway.address, settings.gateway.port),
        "http": (settings.dashboard.address, settings.dashboard.port),
    }
    ports = {port["name"]: port["containerPort"] for port in container(deployment)["ports"]}
    for name, number in ports.items():
        assert listening[name] == ("0.0.0.0", number)
    for probe in PROBES:
        asked = container(deployment).get(probe, {})
        if asked:
            assert asked.get("httpGet", asked.get("tcpSocket"))["port"] in ports


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=named)
def test_probes_and_limits_are_set(deployment: dict[str, Any]) -> None:
    pod, inner = deployment["spec"]["template"]["spec"], container(deployment)
    assert inner["livenessProbe"]
    assert inner["readinessProbe"]
    assert set(inner["resources"]["limits"]) == set(inner["resources"]["requests"]) == {"cpu", "memory"}
    assert pod["terminationGracePeriodSeconds"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert inner["securityContext"]["readOnlyRootFilesystem"]


def paths_of(name: str) -> set[str]:
    inner = next(container(each) for each in DEPLOYMENTS if container(each)["name"] == name)
    return {inner[probe]["httpGet"]["path"] for probe in PROBES if "httpGet" in inner.get(probe, {})}


def test_probes_of_producer_and_gateway_ask_for_pages_that_answer() -> None:
    """A gateway has what every process has; a producer has its state besides."""
    state = Site(pages={"/state": dict})
    for name, site in (("producer", state), ("gateway", Site())):
        with serve_endpoint(0, site=site) as port:
            for path in paths_of(name):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
                    assert answer.status == 200


def test_probes_of_the_dashboard_need_no_token() -> None:
    assert paths_of("dashboard") <= OPEN_PATHS


def test_the_dashboard_may_listen_as_it_is_told_to() -> None:
    """Beyond loopback it refuses to start without a token and TLS, or a proxy that does it."""
    deployment = next(each for each in DEPLOYMENTS if container(each)["name"] == "dashboard")
    made = next(each for each in DOCUMENTS if each["kind"] == "Kustomization")["secretGenerator"][0]
    [token] = [literal.partition("=")[2] for literal in made["literals"] if literal.startswith("dashboard-token=")]
    settings = settings_of(deployment).dashboard.model_copy(update={"token": SecretStr(token)})
    assert Access.of(settings).guards_reads


def test_services_and_budgets_select_pods_that_there_are() -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in DEPLOYMENTS]
    for document in DOCUMENTS:
        if document["kind"] in ("Service", "PodDisruptionBudget"):
            selector = document["spec"]["selector"]
            assert selector.get("matchLabels", selector) in labels
    hosts = {each["metadata"]["name"] for each in DOCUMENTS if each["kind"] == "Service"}
    dashboard = settings_of(next(each for each in DEPLOYMENTS if container(each)["name"] == "dashboard")).dashboard
    for url in (*dashboard.producers, *dashboard.gateways):
        assert url.split("/")[2].split(":")[0] in hosts


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here to put them together")
def test_kustomize_puts_them_together() -> None:
    made = built(FOLDER)
    assert {each["kind"] for each in made} == {each["kind"] for each in DOCUMENTS} - {"Kustomization"} | {"Secret"}
    secret = next(each["metadata"]["name"] for each in made if each["kind"] == "Secret")
    for each in made:
        if each["kind"] == "Deployment":
            _, volume = each["spec"]["template"]["spec"]["volumes"]
            assert volume["secret"]["secretName"] == secret
