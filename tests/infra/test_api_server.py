"""What the chart renders is accepted by an API server of Kubernetes, in a namespace of restricted pods.

A real server with its store, without nodes: it checks every field, fills in defaults, and refuses what its
admission refuses. Seen to fail with a field that does not exist, and with a pod that may become root.
"""

import copy
import http.client
import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from slackwater.dev.server import free_port
from slackwater.protocol import SystemClock
from tests.infra.chart_tools import MissingToolError, find_api_server, find_helm, resource_definition

pytestmark = pytest.mark.slow

CHART = Path(__file__).parents[2] / "infra" / "charts" / "slackwater"
KUBERNETES = "1.37.2"
NAMESPACE = "slackwater"
SECONDS = 600.0
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
CUSTOM = (
    ("sparkoperator.k8s.io/v1beta2", "SparkApplication"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"),
)
PLURALS = {"NetworkPolicy": "networkpolicies"}
VALUES = {
    "the example": (CHART.parent / "examples" / "values.yaml").read_text(),
    "one sidecar": "sidecars: {inv: {sources: [inv]}}",
    "one pipeline": 'pipelines: {orders: {pipeline: orders, checkpoint: "s3://b"}}',
    "everything": """
settings: {http.certificate: /etc/x/tls.crt, http.key: /etc/x/tls.key, run.silent_after: 1800}
secretSettings: {telemetry.token: {name: collector, key: token}}
imagePullSecrets: [{name: pull}]
serviceMonitor: {enabled: true, endpoint: {authorization: {credentials: {name: p, key: token}}}}
networkPolicy: {egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 9093, protocol: TCP}]}]}
sidecars:
  inv:
    sources: [inv, crm]
    replicas: 3
    controlPlane: {enabled: true, tokens: {name: t, key: tokens}}
    config: "timeline = 1"
    monitoredFrom: [{namespaceSelector: {matchLabels: {a: b}}}]
pipelines:
  orders:
    pipeline: orders
    checkpoint: s3://b/c
    driver: {coreLimit: "1"}
    executor: {instances: 3, coreLimit: "2"}
    sparkConf: {spark.ui.enabled: true}
    secretEnv: {AWS_ACCESS_KEY_ID: {name: s, key: k}}
    serviceAccountAnnotations: {role: "reader"}
    nodeSelector: {a: b}
    tolerations: [{key: a, operator: Exists}]
""",
}
Resource = dict[str, Any]


class ApiServer:
    """An API server on a free port, with its store; the token allows everything."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        server, etcd = find_api_server()
        self.folder, self._ending = folder, ending
        self.port, client, peer = free_port(), free_port(), free_port()
        store, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "key.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        (folder / "tokens.csv").write_text("trial,admin,admin,system:masters\n")
        listening = ("--listen-client-urls", store, "--listen-peer-urls", peers)
        announced = ("--advertise-client-urls", store, "--initial-advertise-peer-urls", peers)
        cluster = ("--initial-cluster", f"default={peers}")
        self._start(etcd, "--data-dir", str(folder / "etcd"), *listening, *announced, *cluster)
        self._start(
            server,
            *("--etcd-servers", store, "--cert-dir", str(folder / "certificates")),
            *("--secure-port", str(self.port), "--bind-address", "127.0.0.1"),
            *("--service-account-issuer", "https://slackwater.invalid"),
            *("--service-account-key-file", str(folder / "key.pem")),
            *("--service-account-signing-key-file", str(folder / "key.pem")),
            *("--token-auth-file", str(folder / "tokens.csv"), "--authorization-mode", "RBAC"),
            *("--service-cluster-ip-range", "10.0.0.0/24"),
        )

    def _start(self, program: Path, *arguments: str) -> None:
        log = self._ending.enter_context((self.folder / f"{program.name}.log").open("wb"))
        process = subprocess.Popen((program, *arguments), stdout=log, stderr=log, cwd=self.folder)
        self._ending.callback(process.wait, SECONDS)
        self._ending.callback(process.terminate)

    def request(self, method: str, path: str, content: Resource | None = None) -> tuple[int, str]:
        """The status and body of an answer; 0 while there is none."""
        try:
            trusted = ssl.create_default_context(cafile=self.folder / "certificates" / "apiserver.crt")
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=trusted, timeout=SECONDS)
            headers = {"Authorization": "Bearer trial", "Content-Type": "application/json"}
            connection.request(method, path, json.dumps(content) if content else None, headers)
            answer = connection.getresponse()
            result = answer.status, answer.read().decode()
        except OSError as error:
            return 0, str(error)
        connection.close()
        return result

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition."""
        clock, pause = SystemClock(), threading.Event()
        deadline = clock.monotonic() + SECONDS
        while not condition():
            log = (self.folder / "kube-apiserver.log").read_text()
            assert clock.monotonic() < deadline, log[-2000:]
            pause.wait(0.2)

    def create(self, resource: Resource, *, dry_run: bool = False) -> tuple[int, str]:
        """Creates a resource in the namespace; fields that do not exist are errors."""
        options = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.request("POST", collection(resource) + options, resource)

    def delete(self, resource: Resource) -> None:
        """Removes it."""
        status, said = self.request("DELETE", f"{collection(resource)}/{resource['metadata']['name']}")
        assert status in (200, 202), said


def collection(resource: Resource) -> str:
    """The path of all resources of a kind in the namespace."""
    version, kind = resource["apiVersion"], resource["kind"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{NAMESPACE}/{PLURALS.get(kind, kind.lower() + 's')}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    try:
        definitions = [resource_definition(*each) for each in CUSTOM]
        find_api_server()
    except MissingToolError as error:
        pytest.skip(f"THE CHART IS NOT GIVEN TO AN API SERVER: {error}")
    with ExitStack() as ending:
        found = ApiServer(tmp_path_factory.mktemp("kubernetes"), ending)
        found.wait_until(lambda: found.request("GET", "/readyz")[0] == 200)
        metadata = {"name": NAMESPACE, "labels": RESTRICTED}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        assert found.request("POST", "/api/v1/namespaces", namespace)[0] == 201
        for each in definitions:
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            status, said = found.request("POST", path, each)
            assert status == 201, said
        for version, kind in CUSTOM:
            path = collection({"apiVersion": version, "kind": kind})
            found.wait_until(lambda path=path: found.request("GET", path)[0] == 200)  # type: ignore[misc]
        yield found


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Resource]]:
    """Renders the chart with the text of a values file."""
    try:
        helm = find_helm()
    except MissingToolError as error:
        pytest.skip(str(error))
    file = tmp_path_factory.mktemp("values") / "values.yaml"

    def run(values: str) -> list[Resource]:
        file.write_text(values)
        where = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES)
        argv = (helm, "template", "sw", str(CHART), *where, "--values", file)
        found = subprocess.run(argv, capture_output=True, text=True, check=True)
        return [each for each in yaml.safe_load_all(found.stdout) if each]

    return run


@pytest.mark.parametrize("name", VALUES)
def test_every_resource_is_accepted(
    server: ApiServer, render: Callable[[str], list[Resource]], name: str
) -> None:
    resources = render(VALUES[name])
    assert resources
    refused = {
        each["kind"]: said for each in resources for status, said in [server.create(each)] if status != 201
    }
    assert refused == {}
    for each in resources:
        server.delete(each)


def sidecar_pod(resources: list[Resource]) -> Resource:
    """A pod as the Deployment of a sidecar would make it."""
    [deployment] = [each for each in resources if each["kind"] == "Deployment"]
    template = copy.deepcopy(deployment["spec"]["template"])
    template["spec"]["serviceAccountName"] = "sidecar"
    template["metadata"]["name"] = "sidecar"
    return {"apiVersion": "v1", "kind": "Pod", **template}


def test_a_pod_of_a_sidecar_is_admitted_where_only_restricted_pods_are_and_another_is_not(
    server: ApiServer, render: Callable[[str], list[Resource]]
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sidecar"}}
    assert server.create(account)[0] == 201
    pod = sidecar_pod(render(VALUES["everything"]))
    assert server.create(pod, dry_run=True)[0] == 201
    del pod["spec"]["containers"][0]["securityContext"]["capabilities"]
    status, said = server.create(pod, dry_run=True)
    assert (status, "unrestricted capabilities" in said) == (403, True), said


def test_a_field_that_does_not_exist_is_refused(
    server: ApiServer, render: Callable[[str], list[Resource]]
) -> None:
    for each in render(VALUES["the example"]):
        each["spec" if "spec" in each else "metadata"]["unknownField"] = 1
        status, said = server.create(each, dry_run=True)
        assert (status, "unknownField" in said) == (400, True), f"{each['kind']}: {said}"
