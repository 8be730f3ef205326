"""The routes of the control plane: what is asked under /api/v1, and the page that asks it.

Each route says in :data:`ROUTES` what it answers and who may ask; the OpenAPI document is made of that. What
an answer holds is computed elsewhere, by what the commands use, too.
"""

import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slackwater.cli.control.access import RateLimit, is_loopback
from slackwater.cli.control.metrics import write_metrics
from slackwater.cli.control.requests import (
    DecisionAnswer,
    DecisionRequest,
    LeaseRequest,
    SwitchAnswer,
    SwitchRequest,
)
from slackwater.cli.doctor.report import SourceReport
from slackwater.cli.readers import RevisionStatus
from slackwater.command.tokens import Client, Gate, Role
from slackwater.control import (
    DelayCourse,
    Delays,
    LeaseStanding,
    PipelineNode,
    Sharing,
    SourceNode,
    SourceSnapshot,
    Topology,
    find_equal_stages,
)
from slackwater.protocol import ExplainedError
from slackwater.settings.errors import CommandInputError

_log = logging.getLogger(__name__)

ROOT = "/api/v1"
LARGEST_BODY = 64 << 10
"""Bytes of a request: decisions are short."""
_JSON = "application/json"
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_PAGE_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/plain; charset=utf-8",
}


class Picture(Protocol):
    """Where answers come from; methods block, and raise errors that say what helps."""

    def topology(self) -> Topology:
        """Returns sources, pipelines, and how they are linked."""
        ...

    def report(self, source: str) -> SourceReport:
        """Returns what the doctor says of a source."""
        ...

    def decide(self, source: str, request: DecisionRequest, client: str) -> DecisionAnswer:
        """Records a decision about a source, or says what it would do."""
        ...

    def leases(self) -> tuple[LeaseStanding, ...]:
        """Returns the leases that are not over."""
        ...

    def snapshots(self) -> tuple[SourceSnapshot, ...]:
        """Returns at which commit the pipelines of each source can be read together."""
        ...

    def delays(self) -> Delays:
        """Returns how late each view is, and who is to blame."""
        ...

    def delay_history(self, pipeline: str) -> DelayCourse:
        """Returns how late the views of a pipeline were in the last hours."""
        ...

    def end_lease(self, lease_id: str) -> bool:
        """Ends a lease; returns whether there was one."""
        ...

    def revisions(self, pipeline: str) -> tuple[RevisionStatus, ...]:
        """Returns the revisions of a pipeline, and which one is read."""
        ...

    def switch(self, pipeline: str, request: SwitchRequest) -> SwitchAnswer:
        """Lets readers of a pipeline read another revision."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request was not answered."""

    error: str
    hint: str
    """What helps; empty where the error says it."""


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
    body: Any = None
    """The type of what it is given; None: nothing."""
    role: Role = Role.VIEWER
    """Who may ask."""

    @property
    def method(self) -> str:
        """GET reads, POST decides."""
        return "GET" if self.body is None else "POST"


ROUTES = (
    Answered(
        path="/topology",
        summary="Sources, pipelines, views, and how they are linked",
        answer=Topology,
        name="topology",
    ),
    Answered(
        path="/sources",
        summary="Every source, with its newest cut",
        answer=tuple[SourceNode, ...],
        name="sources",
    ),
    Answered(
        path="/sources/{source}",
        summary="The doctor's findings for a source, its frontier and open transactions. Takes seconds",
        answer=SourceReport,
        name="source",
    ),
    Answered(
        path="/pipelines",
        summary="Every pipeline, running or not",
        answer=tuple[PipelineNode, ...],
        name="pipelines",
    ),
    Answered(path="/pipelines/{pipeline:path}", summary="One pipeline", answer=PipelineNode, name="pipeline"),
    Answered(
        path="/delays",
        summary="How late each view is, by hop, and which component delays it",
        answer=Delays,
        name="delays",
    ),
    Answered(
        path="/delays/history/{pipeline:path}",
        summary="How late the views of a pipeline were in the last hours, as recorded by this process",
        answer=DelayCourse,
        name="delay_history",
    ),
    Answered(
        path="/sharing",
        summary="Which pipelines of a source compute and keep the same, and what merging them would save",
        answer=Sharing,
        name="sharing",
    ),
    Answered(
        path="/snapshots",
        summary="The commit at which all pipelines of a source can be read together, and which one is behind",
        answer=tuple[SourceSnapshot, ...],
        name="snapshots",
    ),
    Answered(
        path="/leases",
        summary="The active leases of readers, and whether their pipelines hold them",
        answer=tuple[LeaseStanding, ...],
        name="leases",
    ),
    Answered(
        path="/leases/{lease}",
        summary="End a lease",
        answer=tuple[LeaseStanding, ...],
        name="end_lease",
        body=LeaseRequest,
        role=Role.OPERATOR,
    ),
    Answered(
        path="/sources/{source}/decisions",
        summary="Make a decision for a source: skip transactions, or begin a new timeline",
        answer=DecisionAnswer,
        name="decide",
        body=DecisionRequest,
        role=Role.OPERATOR,
    ),
    Answered(
        path="/revisions/{pipeline}",
        summary="The revisions of a pipeline, their progress, and which one readers read",
        answer=tuple[RevisionStatus, ...],
        name="revisions",
    ),
    Answered(
        path="/revisions/{pipeline}/switch",
        summary="Switch readers of a pipeline to another revision",
        answer=SwitchAnswer,
        name="switch",
        body=SwitchRequest,
        role=Role.OPERATOR,
    ),
)


class Routes:
    """Answers requests from a picture; a method a route, given the path's parameters and the body."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def topology(self, _: Client) -> Topology:
        """Returns the picture."""
        return self._picture.topology()

    def sources(self, _: Client) -> tuple[SourceNode, ...]:
        """Returns the sources of the picture."""
        return self._picture.topology().sources

    def source(self, _: Client, source: str) -> SourceReport:
        """Returns what the doctor says of a source."""
        self._known_source(source)
        return self._picture.report(source)

    def pipelines(self, _: Client) -> tuple[PipelineNode, ...]:
        """Returns the pipelines of the picture."""
        return self._picture.topology().pipelines

    def pipeline(self, _: Client, pipeline: str) -> PipelineNode:
        """Returns one pipeline of the picture."""
        for node in self._picture.topology().pipelines:
            if node.name == pipeline:
                return node
        raise _unknown("pipeline", pipeline)

    def delays(self, _: Client) -> Delays:
        """Returns how late each view of the picture is."""
        return self._picture.delays()

    def delay_history(self, _: Client, pipeline: str) -> DelayCourse:
        """Returns how late the views of a pipeline were."""
        return self._picture.delay_history(pipeline)

    def sharing(self, _: Client) -> Sharing:
        """Returns what pipelines of the picture compute twice."""
        return find_equal_stages(self._picture.topology())

    def snapshots(self, _: Client) -> tuple[SourceSnapshot, ...]:
        """Returns at which commit the pipelines of each source can be read together."""
        return self._picture.snapshots()

    def leases(self, _: Client) -> tuple[LeaseStanding, ...]:
        """Returns the leases that are not over."""
        return self._picture.leases()

    def end_lease(self, _: Client, lease: str, body: LeaseRequest) -> tuple[LeaseStanding, ...]:
        """Ends a lease; returns those that are left."""
        del body  # it can say nothing else
        if not self._picture.end_lease(lease):
            raise _unknown("lease", lease)
        return self._picture.leases()

    def decide(self, client: Client, source: str, body: DecisionRequest) -> DecisionAnswer:
        """Records a decision about a source, or says what it would do."""
        self._known_source(source)
        return self._picture.decide(source, body, client.name)

    def revisions(self, _: Client, pipeline: str) -> tuple[RevisionStatus, ...]:
        """Returns the revisions of a pipeline, named without one."""
        self._known_pipeline(pipeline)
        return self._picture.revisions(pipeline)

    def switch(self, _: Client, pipeline: str, body: SwitchRequest) -> SwitchAnswer:
        """Lets readers of a pipeline read another revision."""
        self._known_pipeline(pipeline)
        return self._picture.switch(pipeline, body)

    def _known_pipeline(self, name: str) -> None:
        if all(node.base_name != name for node in self._picture.topology().pipelines):
            raise _unknown("pipeline", name)

    def _known_source(self, source: str) -> None:
        if all(node.name != source for node in self._picture.topology().sources):
            raise _unknown("source", source)


def make_app(picture: Picture, gate: Gate, limit: RateLimit, *, has_tls: bool = False) -> ASGIApp:
    """Returns the application: the routes, their description, and the page.

    Without tokens and TLS only names of this machine are answered: a page of another site, whose name is made
    to lead here, would else read everything.

    Args:
        picture: Where answers come from.
        gate: Says who asks.
        limit: Says how often.
        has_tls: Whether the server shows a certificate, which no other name has.
    """
    routes = Routes(picture)
    described = msgspec.json.encode(openapi())

    async def describe(request: Request) -> Response:
        return _response(HTTPStatus.OK, described, request)

    async def expose(request: Request) -> Response:
        """Answers Prometheus, which sends a token as anybody else."""
        client = gate.admit(request.headers.get("authorization", ""), _address(request))
        refused = _refused(client, Role.VIEWER, has_tokens=gate.has_tokens)
        if refused is not None:
            return refused
        try:
            body = await run_in_threadpool(
                lambda: write_metrics(picture.topology(), picture.delays(), picture.leases())
            )
        except ExplainedError as error:
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, error.problem, error.hint)
        return _response(HTTPStatus.OK, body, request, _PROMETHEUS)

    app = Starlette(
        routes=[
            *(
                Route(ROOT + each.path, _endpoint(each, routes, gate), methods=[each.method])
                for each in ROUTES
            ),
            Route(f"{ROOT}/openapi.json", describe),
            Route("/metrics", expose),
            Route("/{path:path}", _page),
        ],
        exception_handlers={HTTPException: _http_problem, Exception: _fault},
    )
    return _Guarded(app, limit, has_loopback_only=not has_tls and not gate.has_tokens)


def openapi() -> dict[str, Any]:
    """Returns the description of the API in OpenAPI 3.1."""
    types = [
        *(each.answer for each in ROUTES),
        *(each.body for each in ROUTES if each.body is not None),
        Problem,
    ]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    problem = {"content": {_JSON: {"schema": schema_of[repr(Problem)]}}}
    paths: dict[str, Any] = {}
    for each in ROUTES:
        content = {_JSON: {"schema": schema_of[repr(each.answer)]}}
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
                "content": {_JSON: {"schema": schema_of[repr(each.body)]}},
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


def _endpoint(route: Answered, routes: Routes, gate: Gate) -> Callable[[Request], Awaitable[Response]]:
    answer = getattr(routes, route.name)

    async def read(request: Request) -> Response:
        client = gate.admit(request.headers.get("authorization", ""), _address(request))
        refused = _refused(client, route.role, has_tokens=gate.has_tokens)
        return refused or await _answered(lambda: answer(client, **request.path_params), request)

    async def decide(request: Request) -> Response:
        client = gate.admit(request.headers.get("authorization", ""), _address(request))
        asked: object = "what was not read"
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        try:
            response = _refused(client, route.role, has_tokens=gate.has_tokens)
            if response is None:
                body = asked = await _body(request, route.body)
                response = await _answered(lambda: answer(client, **request.path_params, body=body), request)
            status = HTTPStatus(response.status_code)
            return response
        except HTTPException as error:
            status = HTTPStatus(error.status_code)
            raise
        finally:  # whoever was refused is logged, too
            fields = {"client": client.name, "path": request.url.path, "status": int(status)}
            _log.warning("%s asks for %s: %s: %d", client.name, request.url.path, asked, status, extra=fields)

    return read if route.body is None else decide


async def _answered(answer: Callable[[], object], request: Request) -> Response:
    """Answers in a thread: whatever asks Kafka blocks."""
    try:
        return _response(HTTPStatus.OK, msgspec.json.encode(await run_in_threadpool(answer)), request)
    except _NotFoundError as error:
        return _problem(HTTPStatus.NOT_FOUND, error.problem, error.hint)
    except CommandInputError as error:
        return _problem(HTTPStatus.CONFLICT, error.problem, error.hint)
    except ExplainedError as error:
        return _problem(HTTPStatus.SERVICE_UNAVAILABLE, error.problem, error.hint)


class _NotFoundError(ExplainedError):
    """What is asked for is not in the picture."""


def _unknown(kind: str, name: str) -> _NotFoundError:
    return _NotFoundError(f"no {kind} {name!r} is known", f"{ROOT}/{kind}s lists those that are")


def _refused(client: Client, role: Role, *, has_tokens: bool) -> Response | None:
    if client.role is None:
        problem = (
            "a token is needed",
            "send it as Authorization: Bearer TOKEN; an operator makes one: slackwater token",
        )
        response = _problem(HTTPStatus.UNAUTHORIZED, *problem)
        response.headers["WWW-Authenticate"] = "Bearer"
        return response
    if role is Role.OPERATOR and client.role is not Role.OPERATOR:
        hint = (
            "use the token of an operator"
            if has_tokens
            else "set control.tokens to a file of tokens; without it, no decisions can be made over HTTP"
        )
        return _problem(HTTPStatus.FORBIDDEN, f"this needs the role {role}", hint)
    return None


async def _body(request: Request, kind: Any) -> Any:
    """Reads a body, but no more than a decision needs.

    Raises:
        HTTPException: it is not what the route takes.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != _JSON:
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected Content-Type: {_JSON}")
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


class _Guarded:
    """Lets each address ask so often, and only under names that are expected; around all routes."""

    def __init__(self, app: ASGIApp, limit: RateLimit, *, has_loopback_only: bool) -> None:
        self._app = app
        self._limit = limit
        self._has_loopback_only = has_loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if self._has_loopback_only and not is_loopback(request.url.hostname or ""):
            hint = "ask 127.0.0.1 or localhost; other names need control.tokens or control.certificate"
            await _problem(HTTPStatus.MISDIRECTED_REQUEST, "this name is not served", hint)(
                scope, receive, send
            )
            return
        wait = self._limit.take(_address(request))
        if wait > 0:
            response = _problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too many requests",
                "send fewer requests, or raise control.requests_per_second",
            )
            response.headers["Retry-After"] = str(int(wait) + 1)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _address(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def _etag(body: bytes) -> str:
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def _response(status: HTTPStatus, body: bytes, request: Request | None = None, kind: str = _JSON) -> Response:
    """Makes an answer; one that the client has already is not sent again."""
    headers = _HEADERS | {"ETag": _etag(body)}
    known = "" if request is None or request.method != "GET" else request.headers.get("if-none-match", "")
    if headers["ETag"] in known:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(body, status, headers, kind)


def _problem(status: HTTPStatus, error: str, hint: str = "") -> Response:
    return Response(msgspec.json.encode(Problem(error=error, hint=hint)), status, _HEADERS, _JSON)


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - nothing else comes here
    return _problem(HTTPStatus(error.status_code), error.detail)


async def _fault(request: Request, error: Exception) -> Response:
    _log.error("a request for %s failed", request.url.path, exc_info=error)
    return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error of the control plane; see its log")


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
        return _problem(HTTPStatus.NOT_FOUND, f"no page at /{name}", "the page is at /, the API at /api/v1")
    kind, body = _PAGE[name]
    return _response(HTTPStatus.OK, body, request, kind)
