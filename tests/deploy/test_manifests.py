"""What ships in deploy/ beside the configs, against the schemas and linters of those who will read it."""

import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compose_spec
import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from deploy.config import Config, load_config
from tests.needs import need

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
Manifest = dict[str, Any]


def documents(path: Path) -> list[Manifest]:
    # Plain data: aliases written out, as whoever reads the manifest has them.
    text = json.dumps(list(YAML(typ="safe").load_all(path.read_text())))
    return [dict(d) for d in json.loads(text)]


def manifests() -> Iterator[tuple[str, Manifest]]:
    for path in sorted(KUBERNETES.glob("*.yml")):
        if path.name != "kustomization.yml":
            yield from ((path.name, document) for document in documents(path))


ALL = list(manifests())
KNOWN = [(name, d) for name, d in ALL if d["kind"] != "RayService"]
(RAY_SERVICE,) = [d for _, d in ALL if d["kind"] == "RayService"]
CLUSTER = RAY_SERVICE["spec"]["rayClusterConfig"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(KUBERNETES / "config.yaml", {})


@pytest.mark.parametrize("path", [KUBERNETES / "config.yaml", DEPLOY / "docker/config.yaml"], ids=str)
def test_configs_are_valid(path: Path) -> None:
    assert load_config(path, {}).models


def test_every_other_yaml_is_a_config_that_graceway_checks() -> None:
    """So that a glob over deploy/ finds configs: everything else ends in .yml."""
    for path in DEPLOY.rglob("*.yaml"):
        assert load_config(path, {}).models, path


@pytest.mark.parametrize(("file", "manifest"), KNOWN, ids=[f"{f}-{d['kind']}" for f, d in KNOWN])
def test_kubernetes_takes_it(file: str, manifest: Manifest) -> None:
    kubernetes_validate.validate(manifest, "1.33", strict=True)


@pytest.mark.parametrize("group", GROUPS, ids=[g.get("groupName", "head") for g in GROUPS])
def test_kubernetes_takes_rays_pods(group: Manifest) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
    kubernetes_validate.validate(pod, "1.33", strict=True)
    for container in group["template"]["spec"]["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert group["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_kuberays_own_keys_are_those_of_its_reference() -> None:
    assert RAY_SERVICE["apiVersion"] == "ray.io/v1"
    assert set(CLUSTER) <= {"rayVersion", "headGroupSpec", "workerGroupSpecs", "enableInTreeAutoscaling"}
    worker_keys = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    for group in CLUSTER["workerGroupSpecs"]:
        assert set(group) == worker_keys
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_serve_takes_its_config_and_finds_the_application() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.serve.schema import ServeDeploySchema

        import deploy.serve_app as named

        written = YAML(typ="safe").load(RAY_SERVICE["spec"]["serveConfigV2"])
        (application,) = ServeDeploySchema.model_validate(written).applications
    module, function = application.import_path.split(":")
    assert callable(getattr(named, function))
    assert module == named.__name__
    mounted = {m["mountPath"] for m in GROUPS[0]["template"]["spec"]["containers"][0]["volumeMounts"]}
    assert str(Path(application.args["config"]).parent) in mounted


def test_ray_has_what_the_tiers_ask_for(config: Config) -> None:
    offered: set[str] = set()
    for group in CLUSTER["workerGroupSpecs"]:
        named = json.loads(json.loads(group["rayStartParams"].get("resources", '"{}"').strip("'")))
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        offered |= set(named)
        for resource in named:
            assert limits[f"nvidia.com/{resource}"] == "1", "a slice that Ray counts is one that the pod has"
    asked = {f"mig-{t.gpu}" for _, t in config.managed_tiers() if isinstance(t.gpu, str)}
    assert asked == offered == {"mig-1g.18gb"}


def test_the_stores_and_selectors_meet(config: Config) -> None:
    services = {d["metadata"]["name"] for _, d in ALL if d["kind"] == "Service"}
    assert re.split(r"[:/]+", config.state_store.url)[1] in services
    labels = [g["template"]["metadata"]["labels"] for g in GROUPS]
    labels += [d["spec"]["template"]["metadata"]["labels"] for _, d in ALL if d["kind"] == "StatefulSet"]
    selectors = [
        d["spec"]["selector"]["matchLabels"]
        for _, d in ALL
        if d["kind"] in ("PodDisruptionBudget", "StatefulSet")
    ]
    selectors += [d["spec"]["podSelector"]["matchLabels"] for _, d in ALL if d["kind"] == "NetworkPolicy"]
    selectors += [d["spec"]["selector"] for _, d in ALL if d["kind"] == "Service"]
    for selector in selectors:
        assert any(selector.items() <= label.items() for label in labels), selector


def test_kustomization_names_files_that_are_there() -> None:
    (kustomization,) = documents(KUBERNETES / "kustomization.yml")
    files = [*kustomization["resources"], *kustomization["configMapGenerator"][0]["files"]]
    assert all((KUBERNETES / name).is_file() for name in files)


@pytest.mark.parametrize("script", ["start-redis.sh", "start-sentinel.sh"])
def test_scripts_are_shell(script: str) -> None:
    (settings,) = [d for _, d in ALL if d["kind"] == "ConfigMap"]
    subprocess.run(["sh", "-n"], input=settings["data"][script], text=True, check=True)


def test_compose_takes_its_file() -> None:
    (written,) = documents(DEPLOY / "docker/compose.yml")
    compose = compose_spec.PyCompose.from_json(json.dumps(written))
    compose.validate()
    assert set(compose.service_names()) == set(written["services"])
    for service in written["services"].values():
        for volume in service.get("volumes", []):
            assert (DEPLOY / "docker" / volume.split(":")[0]).exists(), volume
        assert service.get("image") or service.get("build")


def test_the_dockerfile_passes_hadolint() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint
    done = subprocess.run(
        [hadolint, "--no-color", str(DEPLOY / "docker/Dockerfile")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "USER 10001" in (DEPLOY / "docker/Dockerfile").read_text()


def test_prometheus_takes_its_config() -> None:
    path = DEPLOY / "prometheus/prometheus.yml"
    subprocess.run(
        [need("promtool", "prometheus"), "check", "config", "--syntax-only", str(path)], check=True
    )


def dashboard() -> Manifest:
    return dict(json.loads((DEPLOY / "grafana/graceway.json").read_text()))


def test_the_dashboards_queries_are_promql(tmp_path: Path) -> None:
    queries = [t["expr"] for panel in dashboard()["panels"] for t in panel["targets"]]
    rules = [{"record": f"query:{n}", "expr": expr} for n, expr in enumerate(queries)]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    subprocess.run([need("promtool", "prometheus"), "check", "rules", str(path)], check=True)


def test_the_dashboard_asks_for_metrics_that_are_there() -> None:
    rules = (DEPLOY / "alerts/graceway.rules.yml").read_text()
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            for name in re.findall(r"graceway_\w+", target["expr"]):
                assert re.sub("_(total|bucket)$", "", name) in SHOWN, name
            for name in re.findall(r"graceway:[\w:]+", target["expr"]):
                assert f"record: {name}" in rules, name


SHOWN = {
    name
    for path in (DEPLOY.parent / "gateway").glob("*.py")
    for name in re.findall(r'"(graceway_\w+)"', path.read_text())
}
