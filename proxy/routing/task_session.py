"""The 2025 tasks of one legacy client's session: which of its messages are ours, and what they are answered.

Above: the session's own route (`passthrough`, `http_passthrough`), which sends on whatever is not claimed
here. Below: `tasks_2025`, and the session's place with the upstream. MCP 2025-11-25, "Tasks"; contract
section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import assert_never

from proxy.eras.capabilities import ANY_CAPABILITIES, ClientCapabilities
from proxy.eras.tasks_2025 import TaskSupport, UpstreamTasks, wished_ttl_ms
from proxy.errors import ClientProtocolError, ErrorCode, TaskNotFound, UpstreamError
from proxy.owners import Owner
from proxy.protocol import list_cursor, names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, elements
from proxy.protocol.jsonrpc import ErrorResponse, Request, ResultResponse
from proxy.protocol.list_cursor import InvalidCursor, ListPosition
from proxy.routing.base import Answer, ErrorAnswer, ResultAnswer
from proxy.routing.live import Place
from proxy.routing.offers import Channel
from proxy.routing.tasks_2025 import Tasks2025
from proxy.tasks import views_2025
from proxy.tasks.policy import ToolMode
from proxy.tasks.task import is_task_id
from proxy.upstream.base import Failure, Result


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """`lists`: whether `tasks/list` shows our tasks, as it does where the owner is known. A client's wish for
    the `ttl` is clamped to `least_ttl_ms` ... `most_ttl_ms`. `cursor_key` signs list cursors."""

    lists: bool
    least_ttl_ms: int
    most_ttl_ms: int
    cursor_key: bytes


class TaskSession:
    """Made once a session has 2025 tasks. `place` gives the session with the upstream that task calls run on;
    `capabilities` are what its client declared, or any where that is not known.

    `channel` is what reaches the client besides the answers to its requests, where there is such a way; say
    `channel_changed` after each change of it.
    """

    def __init__(
        self,
        tasks: Tasks2025,
        owner: Owner,
        upstream: UpstreamTasks,
        place: Place,
        terms: TaskTerms,
        capabilities: ClientCapabilities = ANY_CAPABILITIES,
    ) -> None:
        self._tasks = tasks
        self._owner = owner
        self._upstream = upstream
        self._place = place
        self._terms = terms
        self._capabilities = capabilities
        self._channel: Channel | None = None

    @property
    def channel(self) -> Channel | None:
        return self._channel

    def can_answer(self, method: str, params: bytes | None) -> bool:
        """Whether the client may be asked this (F15)."""
        return self._capabilities.missing_for(method, params) is None

    def set_channel(self, channel: Channel | None) -> None:
        """From now on this reaches the client; None: nothing does. Also to be said when it has closed."""
        self._channel = channel
        self._tasks.channels_changed(self)

    def end(self) -> None:
        """The client's session is over; its tasks go on."""
        self._channel = None
        self._tasks.leave(self)

    # -- what is ours -------------------------------------------------------------------------------

    def claims(self, request: Request) -> bool:
        """Whether `serve` is to be asked for the answer; all else goes upstream as it is."""
        match request.method:
            case names.TOOLS_CALL:
                return self._claims_call(request)
            case names.TASKS_LIST:
                return self._terms.lists or not self._upstream.list
            case names.TASKS_GET | names.TASKS_RESULT | names.TASKS_CANCEL:
                task_id = _text(request.readable, "taskId")
                return not self._upstream.any or (task_id is not None and is_task_id(task_id))
            case _:
                return False

    def _claims_call(self, request: Request) -> bool:
        params, raw = request.readable, request.params
        if raw is None:
            return False
        may_have_one = request.known is not None or b'"task"' in raw or b"\\u" in raw  # however it is spelt
        if may_have_one and _has_task(request.known or raw):
            return True
        policy = self._tasks.policy
        return policy.requires_any and policy.for_tool(_text(params, "name") or "").mode is ToolMode.REQUIRED

    async def serve(self, request: Request, stream: Channel | None) -> Answer | None:
        """The answer to a request that is claimed; None if it belongs to the upstream after all.

        `stream` is where messages before the answer may go. Raises ProxyError.
        """
        try:
            params = request.known or RawObject.parse(request.params or b"{}")
            return await self._serve(request, params, stream)
        except JsonError as exc:
            raise _invalid("params is not an object") from exc
        except DuplicateMember as exc:
            raise _invalid(str(exc)) from exc

    async def _serve(self, request: Request, params: RawObject, stream: Channel | None) -> Answer | None:
        match request.method:
            case names.TOOLS_CALL:
                return await self._call(request, params)
            case names.TASKS_GET:
                return await self._tasks.get(self._owner, self, params.text("taskId"))
            case names.TASKS_RESULT:
                return await self._tasks.result(self._owner, self, params.text("taskId"), stream)
            case names.TASKS_CANCEL:
                return await self._tasks.cancel(self._owner, params.text("taskId"))
            case _:
                return await self._list(params)

    def take_answer(self, response: ResultResponse | ErrorResponse) -> bool:
        """Take a client's answer to a question of ours; False: it answers a question of the upstream."""
        match response:
            case ResultResponse(rid, result):
                return self._tasks.take_answer(self._owner, rid, result, None)
            case ErrorResponse(None):
                return False
            case ErrorResponse(rid, error):
                return rid is not None and self._tasks.take_answer(self._owner, rid, None, error)
            case _:
                assert_never(response)

    # -- calls --------------------------------------------------------------------------------------

    async def _call(self, request: Request, params: RawObject) -> Answer | None:
        name = params.text("name") or ""
        tool = self._tasks.policy.for_tool(name)
        wish = params.get("task") if _has_task(params) else None
        if await self._is_upstreams(name):
            return None
        if wish is None:
            raise _refused(f"tool {name!r} is served as a task only: call it with task")  # T25-TOOL-004
        retention_ms = wished_ttl_ms(
            wish,
            default_ms=self._tasks.policy.retention_ms,
            least_ms=self._terms.least_ttl_ms,
            most_ms=self._terms.most_ttl_ms,
        )
        if tool.mode is ToolMode.NEVER:
            raise _refused(f"tool {name!r} is not served as a task: call it without task")  # T25-TOOL-002
        return await self._tasks.create(
            self._owner,
            self,
            params,
            rid=request.id,
            tool=tool,
            place=self._place,
            offered=self._capabilities.offered,
            retention_ms=retention_ms,
        )

    async def _is_upstreams(self, tool: str) -> bool:
        """Whether the upstream runs this tool as a task of its own (contract section 2). Raises UpstreamError
        if that cannot be known: who guesses wrong runs the call in another way than the client asked for."""
        if not self._upstream.tools:
            return False
        async with self._place() as session:
            support = await session.catalogue.task_support(tool)
        if support is None:
            raise UpstreamError("the upstream's tools are not known, for tools/list failed; nothing was sent")
        return support is not TaskSupport.FORBIDDEN

    def mark(self, tool: str, said: TaskSupport | None) -> TaskSupport:
        """What `tools/list` shows of a tool (T25-TOOL-001)."""
        if self._upstream.tools and said in (TaskSupport.OPTIONAL, TaskSupport.REQUIRED):
            return said
        match self._tasks.policy.for_tool(tool).mode:
            case ToolMode.NEVER:
                return TaskSupport.FORBIDDEN
            case ToolMode.REQUIRED:
                return TaskSupport.REQUIRED
            case ToolMode.AUTO:
                return said if said is TaskSupport.REQUIRED else TaskSupport.OPTIONAL
            case mode:
                assert_never(mode)

    # -- the list -----------------------------------------------------------------------------------

    async def _list(self, params: RawObject) -> Answer:
        """Our tasks, then the upstream's own (T25-LST-001 to T25-LST-006)."""
        if not self._terms.lists:
            raise ClientProtocolError(
                ErrorCode.METHOD_NOT_FOUND, "Method not found: tasks/list is served to known owners only"
            )
        position = self._position(params)
        shown: list[bytes] = []
        if position.upstream is None:
            try:
                ours, after = await self._tasks.page(self._owner, position.after)
            except TaskNotFound as exc:
                raise _invalid("the cursor is not valid") from exc
            if after is not None or not self._upstream.list:
                cursor = None if after is None else self._cursor(ListPosition(after=after))
                return ResultAnswer(views_2025.list_result(ours, cursor))
            shown.extend(ours)
        return await self._upstream_page(shown, position.upstream)

    async def _upstream_page(self, shown: list[bytes], cursor: str | None) -> Answer:
        """What was shown of ours, and a page of the upstream's own."""
        async with self._place() as session:
            outcome = await session.ask(
                names.TASKS_LIST, None if cursor is None else dumps({"cursor": cursor})
            )
        match outcome:
            case Failure(error):
                return ErrorAnswer(error, HTTPStatus.OK)
            case Result(raw):
                theirs, following = _page_in(raw)
        sealed = None if following is None else self._cursor(ListPosition(upstream=following))
        return ResultAnswer(views_2025.list_result([*shown, *theirs], sealed))

    def _position(self, params: RawObject) -> ListPosition:
        raw = params.get("cursor")
        if raw is None:
            return ListPosition()
        try:
            return list_cursor.unseal(self._terms.cursor_key, self._owner.key, params.text("cursor") or "")
        except InvalidCursor as exc:
            raise _invalid(str(exc)) from exc

    def _cursor(self, position: ListPosition) -> str:
        return list_cursor.seal(self._terms.cursor_key, self._owner.key, position)


def _page_in(result: bytes) -> tuple[list[bytes], str | None]:
    """The tasks and the cursor in an upstream's `tasks/list` result. Raises UpstreamError if it is none."""
    try:
        page = RawObject.parse(result)
        return elements(page.get("tasks") or b""), page.text("nextCursor")
    except (JsonError, DuplicateMember) as exc:
        raise UpstreamError("the upstream's answer to tasks/list cannot be used") from exc


def _has_task(params: RawObject | bytes) -> bool:
    """null is a spelling of none (F19); what stands twice is refused later."""
    try:
        return _object(params).get("task") not in (None, b"null")
    except DuplicateMember:
        return True


def _object(params: RawObject | bytes) -> RawObject:
    try:
        return RawObject.parse(params) if isinstance(params, bytes) else params
    except JsonError:
        return RawObject.parse(b"{}")


def _text(params: RawObject | bytes | None, member: str) -> str | None:
    try:
        return None if params is None else _object(params).text(member)
    except DuplicateMember:
        return None


def _invalid(what: str) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.INVALID_PARAMS, f"Invalid params: {what}")


def _refused(what: str) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.METHOD_NOT_FOUND, f"Method not found: {what}")
