"""Every name of the protocol that the proxy writes or compares, once.

Method names, header names, `_meta` keys, versions, result types. MCP 2024-11-05 ... 2026-07-28 and the
Tasks extension.
"""

from __future__ import annotations

from typing import Final

# Versions, oldest first.
LEGACY_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS: Final = ("2026-07-28",)
LATEST_LEGACY: Final = LEGACY_VERSIONS[-1]
LATEST_MODERN: Final = MODERN_VERSIONS[-1]

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"

# Keys of `_meta`.
META: Final = "_meta"
META_PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
META_CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
META_CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
META_LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
META_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
META_SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
META_RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
META_IMMEDIATE_RESPONSE: Final = "io.modelcontextprotocol/model-immediate-response"
META_PROGRESS_TOKEN: Final = "progressToken"

# Methods, client to server.
DISCOVER: Final = "server/discover"
INITIALIZE: Final = "initialize"
PING: Final = "ping"
TOOLS_LIST: Final = "tools/list"
TOOLS_CALL: Final = "tools/call"
PROMPTS_LIST: Final = "prompts/list"
PROMPTS_GET: Final = "prompts/get"
RESOURCES_LIST: Final = "resources/list"
RESOURCES_TEMPLATES_LIST: Final = "resources/templates/list"
RESOURCES_READ: Final = "resources/read"
RESOURCES_SUBSCRIBE: Final = "resources/subscribe"
RESOURCES_UNSUBSCRIBE: Final = "resources/unsubscribe"
COMPLETION_COMPLETE: Final = "completion/complete"
LOGGING_SET_LEVEL: Final = "logging/setLevel"
SUBSCRIPTIONS_LISTEN: Final = "subscriptions/listen"
TASKS_GET: Final = "tasks/get"
TASKS_UPDATE: Final = "tasks/update"
TASKS_CANCEL: Final = "tasks/cancel"
TASKS_RESULT: Final = "tasks/result"
TASKS_LIST: Final = "tasks/list"

# Methods, server to client (legacy requests; in the modern era they are input requests).
ELICITATION_CREATE: Final = "elicitation/create"
SAMPLING_CREATE_MESSAGE: Final = "sampling/createMessage"
ROOTS_LIST: Final = "roots/list"

# Notifications.
INITIALIZED: Final = "notifications/initialized"
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
LOG_MESSAGE: Final = "notifications/message"
TOOLS_LIST_CHANGED: Final = "notifications/tools/list_changed"
PROMPTS_LIST_CHANGED: Final = "notifications/prompts/list_changed"
RESOURCES_LIST_CHANGED: Final = "notifications/resources/list_changed"
RESOURCES_UPDATED: Final = "notifications/resources/updated"
ROOTS_LIST_CHANGED: Final = "notifications/roots/list_changed"
ELICITATION_COMPLETE: Final = "notifications/elicitation/complete"
SUBSCRIPTIONS_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
TASK_NOTIFICATION: Final = "notifications/tasks"
TASK_STATUS_NOTIFICATION: Final = "notifications/tasks/status"

# Result types.
COMPLETE: Final = "complete"
INPUT_REQUIRED: Final = "input_required"
TASK: Final = "task"

# HTTP headers, as we write them; they compare without case.
H_PROTOCOL_VERSION: Final = "MCP-Protocol-Version"
H_METHOD: Final = "Mcp-Method"
H_NAME: Final = "Mcp-Name"
H_PARAM_PREFIX: Final = "Mcp-Param-"
H_SESSION_ID: Final = "Mcp-Session-Id"
H_LAST_EVENT_ID: Final = "Last-Event-ID"

# Log levels, lowest first (RFC 5424).
LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

# Legacy error codes that a modern client must not see.
LEGACY_RESOURCE_NOT_FOUND: Final = -32002
LEGACY_URL_ELICITATION_REQUIRED: Final = -32042

NAME_MEMBER: Final = {
    TOOLS_CALL: "name",
    PROMPTS_GET: "name",
    RESOURCES_READ: "uri",
    TASKS_GET: "taskId",
    TASKS_UPDATE: "taskId",
    TASKS_CANCEL: "taskId",
}
"""The member of params that `Mcp-Name` mirrors, by method."""

TASK_METHODS: Final = frozenset({TASKS_GET, TASKS_UPDATE, TASKS_CANCEL})
"""Methods of the Tasks extension."""

TASK_METHODS_2025: Final = frozenset({TASKS_GET, TASKS_RESULT, TASKS_CANCEL})
"""Methods of sessions of 2025-11-25 that name a task."""

CARRIES_INPUT: Final = frozenset({TOOLS_CALL, PROMPTS_GET, RESOURCES_READ})
"""Methods that an InputRequiredResult may answer (MRTR, "Supported Requests")."""
