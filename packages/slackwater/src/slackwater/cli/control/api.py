"""The routes of the control plane: what is asked under /api/v1, and the page that asks it.

Each method of :class:`Routes` declares a route; the OpenAPI document has its name, docstring and types. What
an answer holds is computed elsewhere, by what the commands use, too.
"""

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from importlib.resources import files
from typing import Any, TypeVar, get_type_hints

import msgspec
from prometheus_client import generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from slackwater.cli.commands.status import SourceReport
from slackwater.cli.control.picture import (
    ClusterPicture,
    DecisionAnswer,
    DecisionRequest,
    LeaseRequest,
    SwitchAnswer,
    SwitchRequest,
)
from slackwater.cli.revisions import RevisionStatus
from slackwater.command.http_server import JSON, PROMETHEUS, Problem, problem, refused, response_headers
from slackwater.command.listening import Client, Role
from slackwater.control import (
    ComponentKind,
    DelayCourse,
    Delays,
    LeaseStanding,
    LeaseState,
    PipelineNode,
    PipelineState,
    Sharing,
    SourceNode,
    SourceSnapshot,
    Topology,
    find_equal_stages,
)
from slackwater.observe.telemetry import Samples, make_registry
from slackwater.protocol import InputError, SlackwaterError, metrics
from slackwater.protocol.metrics import Metric

_log = logging.getLogger(__name__)

ROOT = "/api/v1"
LARGEST_BODY = 64 << 10
"""Bytes of a request: decisions are short."""
_PAGE_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a route says of itself."""

    path: str
    """Below :data:`ROOT`, with parameters in braces."""
    summary: str
    answer: Any
    """The type of what it answers."""
    name: str
    """The method of :class:`Routes`."""
    body: Any
    """The type of what it is given; None: nothing."""
    role: Role
    """Who may ask."""

    @property
    def method(self) -> str:
        """GET reads, POST decides."""
        return "GET" if self.body is None else "POST"


ROUTES: list[Answered] = []
"""In the order of the methods of :class:`Routes`."""
Method = TypeVar("Method", bound=Callable[..., object])


def _route(path: str) -> Callable[[Method], Method]:
    """Declares a method to be a route: its docstring is the summary, its types those of answer and body.

    Only operators may ask routes that are given a body, since these decide.
    """

    def declare(method: Method) -> Method:
        types = get_type_hints(method)
        body = types.get("body")
        role = Role.VIEWER if body is None else Role.OPERATOR
        summary = (method.__doc__ or "").removesuffix(".")
        ROUTES.append(
            Answered(
                path=path, summary=summary, answer=types["return"], name=method.__name__, body=body, role=role
            )
        )
        return method

    return declare


class Routes:
    """Answers requests from a picture; a method a route, given the path's parameters and the body."""

    def __init__(self, picture: ClusterPicture) -> None:
        self._picture = picture

    @_route("/topology")
    def topology(self, _: Client) -> Topology:
        """Sources, pipelines, views, and how they are linked."""
        return self._picture.topology()

    @_route("/sources")
    def sources(self, _: Client) -> tuple[SourceNode, ...]:
        """Every source, with its newest cut."""
        return self._picture.topology().sources

    @_route("/sources/{source}")
    def source(self, _: Client, source: str) -> SourceReport:
        """The doctor's findings for a source, its frontier and open transactions. Takes seconds."""
        self._known_source(source)
        return self._picture.report(source)

    @_route("/pipelines")
    def pipelines(self, _: Client) -> tuple[PipelineNode, ...]:
        """Every pipeline, running or not."""
        return self._picture.topology().pipelines

    @_route("/pipelines/{pipeline:path}")
    def pipeline(self, _: Client, pipeline: str) -> PipelineNode:
        """One pipeline."""
        for node in self._picture.topology().pipelines:
            if node.name == pipeline:
                return node
        raise _unknown("pipeline", pipeline)

    @_route("/delays")
    def delays(self, _: Client) -> Delays:
        """The delay of each view, by component, and its cause."""
        return self._picture.delays()

    @_route("/delays/history/{pipeline:path}")
    def delay_history(self, _: Client, pipeline: str) -> DelayCourse:
        """How late the views of a pipeline were in the last hours, as recorded by this process."""
        return self._picture.delay_history(pipeline)

    @_route("/sharing")
    def sharing(self, _: Client) -> Sharing:
        """Which pipelines of a source compute and keep the same, and what merging them would save."""
        return find_equal_stages(self._picture.topology())

    @_route("/snapshots")
    def snapshots(self, _: Client) -> tuple[SourceSnapshot, ...]:
        """The commit at which all pipelines of a source can be read together, and which one is behind."""
        return self._picture.snapshots()

    @_route("/leases")
    def leases(self, _: Client) -> tuple[LeaseStanding, ...]:
        """The active leases of readers, and whether their pipelines hold them."""
        return self._picture.leases()

    @_route("/leases/{lease}")
    def end_lease(self, _: Client, lease: str, body: LeaseRequest) -> tuple[LeaseStanding, ...]:
        """End a lease."""
        del body  # it can say nothing else
        if not self._picture.end_lease(lease):
            raise _unknown("lease", lease)
        return self._picture.leases()

    @_route("/sources/{source}/decisions")
    def decide(self, client: Client, source: str, body: DecisionRequest) -> DecisionAnswer:
        """Make a decision for a source: skip transactions, or begin a new timeline."""
        self._known_source(source)
        return self._picture.decide(source, body, client.name)

    @_route("/revisions/{pipeline}")
    def revisions(self, _: Client, pipeline: str) -> tuple[RevisionStatus, ...]:
        """The revisions of a pipeline, their progress, and which one readers read."""
        self._known_pipeline(pipeline)
        return self._picture.revisions(pipeline)

    @_route("/revisions/{pipeline}/switch")
    def switch(self, _: Client, pipeline: str, body: SwitchRequest) -> SwitchAnswer:
        """Switch readers of a pipeline to another revision."""
        self._known_pipeline(pipeline)
        return self._picture.switch(pipeline, body)

    def _known_pipeline(self, name: str) -> None:
        if all(name not in node.base_names for node in self._picture.topology().pipelines):
            raise _unknown("pipeline", name)

    def _known_source(self, source: str) -> None:
        if all(node.name != source for node in self._picture.topology().sources):
            raise _unknown("source", source)


def control_routes(picture: ClusterPicture, *, has_tokens: bool) -> list[Route]:
    """Returns the routes, their description, and the page.

    Without tokens nobody decides.
    """
    routes = Routes(picture)
    described = msgspec.json.encode(openapi())

    async def describe(request: Request) -> Response:
        return _response(described, request)

    async def expose(request: Request) -> Response:
        """Answers Prometheus, which sends a token as anybody else."""
        return refused(request) or await _answered(
            lambda: write_metrics(picture.topology(), picture.delays(), picture.leases()), request, PROMETHEUS
        )

    return [
        *(
            Route(ROOT + each.path, _endpoint(each, routes, has_tokens=has_tokens), methods=[each.method])
            for each in ROUTES
        ),
        Route(f"{ROOT}/openapi.json", describe),
        Route("/metrics", expose),
        Route("/{path:path}", _page),
    ]


def openapi() -> dict[str, Any]:
    """Returns the description of the API in OpenAPI 3.1."""
    types = [
        *(each.answer for each in ROUTES),
        *(each.body for each in ROUTES if each.body is not None),
        Problem,
    ]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    problem = {"content": {JSON: {"schema": schema_of[repr(Problem)]}}}
    paths: dict[str, Any] = {}
    for each in ROUTES:
        content = {JSON: {"schema": schema_of[repr(each.answer)]}}
        operation: dict[str, Any] = {
            "operationId": each.name,
            "summary": each.summary,
            "description": f"Needs the role {each.role}.",
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"{(\w+)", each.path)
            ],
            "responses": {
                "200": {"description": "Done", "content": content},
                "default": {"description": "Not done, and why", **problem},
            },
        }
        if each.body is not None:
            operation["requestBody"] = {
                "required": True,
                "content": {JSON: {"schema": schema_of[repr(each.body)]}},
            }
        paths.setdefault(ROOT + each.path.replace(":path}", "}"), {})[each.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Slackwater's control plane", "version": version("slackwater")},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _endpoint(
    route: Answered, routes: Routes, *, has_tokens: bool
) -> Callable[[Request], Awaitable[Response]]:
    answer = getattr(routes, route.name)
    hint = (
        "use the token of an operator"
        if has_tokens
        else "set control.tokens to a file of tokens; without it, no decisions can be made over HTTP"
    )

    def answering(request: Request, **given: object) -> Callable[[], bytes]:
        return lambda: msgspec.json.encode(answer(request.state.client, **request.path_params, **given))

    async def read(request: Request) -> Response:
        return refused(request, route.role, hint) or await _answered(answering(request), request)

    async def decide(request: Request) -> Response:
        name, path = request.state.client.name, request.url.path
        asked: object = "what was not read"
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        try:
            response = refused(request, route.role, hint)
            if response is None:
                body = asked = await _body(request, route.body)
                response = await _answered(answering(request, body=body), request)
            status = HTTPStatus(response.status_code)
            return response
        except HTTPException as error:
            status = HTTPStatus(error.status_code)
            raise
        finally:  # refused clients are logged, too
            fields = {"client": name, "path": path, "status": int(status)}
            _log.warning("%s asks for %s: %s: %d", name, path, asked, status, extra=fields)

    return read if route.body is None else decide


async def _answered(answer: Callable[[], bytes], request: Request, kind: str = JSON) -> Response:
    """Answers in a thread: whatever asks Kafka blocks."""
    try:
        return _response(await run_in_threadpool(answer), request, kind)
    except _NotFoundError as error:
        return problem(HTTPStatus.NOT_FOUND, error.problem, error.hint)
    except InputError as error:
        return problem(HTTPStatus.CONFLICT, error.problem, error.hint)
    except SlackwaterError as error:
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, error.problem, error.hint)


class _NotFoundError(SlackwaterError):
    """What is asked for is not in the picture."""


def _unknown(kind: str, name: str) -> _NotFoundError:
    return _NotFoundError(f"no {kind} {name!r} is known", f"{ROOT}/{kind}s lists those that are")


async def _body(request: Request, kind: Any) -> Any:
    """Reads a body, but no more than a decision needs.

    Raises:
        HTTPException: it is not what the route takes.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected Content-Type: {JSON}")
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > LARGEST_BODY:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {LARGEST_BODY} bytes")
    except ClientDisconnect as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the request ended before its body") from error
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        problem = f"the request cannot be read: {error}; see {ROOT}/openapi.json"
        raise HTTPException(HTTPStatus.BAD_REQUEST, problem) from error


def _response(body: bytes, request: Request, kind: str = JSON) -> Response:
    """Makes an answer; one that the client has already is not sent again."""
    tag = hashlib.blake2b(body, digest_size=12).hexdigest()
    headers = response_headers() | {"ETag": f'"{tag}"'}
    known = request.headers.get("if-none-match", "") if request.method == "GET" else ""
    if headers["ETag"] in known:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(body, HTTPStatus.OK, headers, kind)


def _read_page() -> Mapping[str, tuple[str, bytes]]:
    here = files("slackwater.cli.control")
    found = {}
    for file in (here / "page").iterdir():
        kind = _PAGE_TYPES.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            found[file.name] = kind, file.read_bytes()
    for section in (here / "runbooks").read_text(encoding="utf-8").split("\n## ")[1:]:
        name = section.partition("\n")[0].lower().replace(" ", "-")
        found[f"runbooks/{name}.md"] = _PAGE_TYPES[".md"], f"# {section}".encode()
    return found


_PAGE = _read_page()


async def _page(request: Request) -> Response:
    """Serves the page and its assets."""
    name = request.path_params["path"] or "index.html"
    if name not in _PAGE:
        return problem(HTTPStatus.NOT_FOUND, f"no page at /{name}", "the page is at /, the API at /api/v1")
    kind, body = _PAGE[name]
    return _response(body, request, kind)


def write_metrics(topology: Topology, delays: Delays, leases: Sequence[LeaseStanding]) -> bytes:
    """Writes the metrics in Prometheus' text format."""
    samples = _samples(topology, delays, leases)
    return generate_latest(make_registry(metrics.CONTROL_METRICS, samples.__getitem__))


def _samples(topology: Topology, delays: Delays, leases: Sequence[LeaseStanding]) -> Mapping[Metric, Samples]:
    return {
        metrics.PIPELINES: _counted(PipelineState, (each.state for each in topology.pipelines)),
        metrics.VIEW_DELAY: [
            ((view.source, view.pipeline, view.view), view.delay_ms / 1000)
            for view in delays.views
            if view.delay_ms is not None
        ],
        metrics.COMPONENT_DELAY: list(_components(delays)),
        metrics.DELAY_CAUSES: _counted(ComponentKind, (each.kind for each in delays.causes)),
        metrics.PIPELINE_EVENTS: [((each.name,), each.run_events) for each in topology.pipelines],
        metrics.PIPELINE_DOCUMENTS: [((each.name,), each.run_documents) for each in topology.pipelines],
        metrics.STATE_BYTES: [
            ((each.name,), sum(each.state_bytes.values())) for each in topology.pipelines if each.state_bytes
        ],
        metrics.LEASES: _counted(LeaseState, (each.state for each in leases)),
    }


def _components(delays: Delays) -> Iterable[tuple[tuple[str, str], float]]:
    arrived = [
        *((ComponentKind.CONNECTOR, each.source, each.connector_ms) for each in delays.arrivals),
        *((ComponentKind.SIDECAR, each.source, each.sidecar_ms) for each in delays.arrivals),
    ]
    on_the_way = ((each.kind, each.name, each.delay_ms) for view in delays.views for each in view.components)
    known = [(kind, name, ms) for kind, name, ms in (*arrived, *on_the_way) if ms is not None]
    return {(str(kind), name): delay_ms / 1000 for kind, name, delay_ms in known}.items()


def _counted(kinds: Iterable[str], found: Iterable[str]) -> Samples:
    counts = Counter(found)
    return [((str(kind),), float(counts[kind])) for kind in kinds]
