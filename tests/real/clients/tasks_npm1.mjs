// A client of npm @modelcontextprotocol/sdk 1.x that has its tool calls run as 2025 tasks.
//
//     tasks_npm1.mjs NODE_MODULES TARGET
//
// NODE_MODULES is the folder that has the package. TARGET is JSON: {"url", "headers"}, or {"command"}.
// `client.experimental.tasks.callToolStream` does the work.

import { pathToFileURL } from 'node:url';

import { ask, obey, pages, say } from './task_lines.mjs';

const [folder, encoded] = process.argv.slice(2);
const target = JSON.parse(encoded);
const load = (file) => import(pathToFileURL(`${folder}/@modelcontextprotocol/sdk/dist/esm/${file}`).href);
const { Client } = await load('client/index.js');
const { StdioClientTransport } = await load('client/stdio.js');
const { StreamableHTTPClientTransport } = await load('client/streamableHttp.js');
const types = await load('types.js');

const onprogress = (params) => say({ event: 'progress', ...params });
let client;

function transport() {
    if (target.url) {
        return new StreamableHTTPClientTransport(new URL(target.url), { requestInit: { headers: target.headers } });
    }
    const [command, ...args] = target.command;
    return new StdioClientTransport({ command, args, env: process.env, cwd: process.cwd() });
}

await obey({
    async connect() {
        const capabilities = { elicitation: { form: {}, url: {} }, sampling: {}, roots: { listChanged: true } };
        client = new Client({ name: 'npm1-tasks', version: '1' }, { capabilities });
        const schemas = [types.ElicitRequestSchema, types.CreateMessageRequestSchema, types.ListRootsRequestSchema];
        for (const schema of schemas) {
            client.setRequestHandler(schema, ({ method, params }) => ask(method, params));
        }
        client.setNotificationHandler(types.TaskStatusNotificationSchema, ({ params }) =>
            say({ event: 'notified', task: params })
        );
        client.setNotificationHandler(types.LoggingMessageNotificationSchema, ({ params }) =>
            say({ event: 'logged', ...params })
        );
        client.onerror = (error) => say({ event: 'complained', message: error.message });
        const made = transport();
        made.setProtocolVersion ??= (version) => { made.protocolVersion = version; }; // stdio keeps none
        await client.connect(made);
        return { version: made.protocolVersion, capabilities: client.getServerCapabilities() };
    },
    async close() {
        await client.transport.terminateSession?.();
        await client.close();
    },
    tools: async () => (await client.listTools()).tools,
    call: (params) => client.callTool(params, undefined, { onprogress }),
    async start({ ttl, ...params }) {
        const options = { task: { ttl }, onprogress };
        for await (const message of client.experimental.tasks.callToolStream(params, undefined, options)) {
            if (message.type === 'error') throw message.error;
            return { task: message.task };
        }
    },
    async run({ ttl, ...params }) {
        const options = { task: { ttl }, onprogress };
        for await (const message of client.experimental.tasks.callToolStream(params, undefined, options)) {
            if (message.type === 'taskCreated') say({ event: 'created', task: message.task });
            if (message.type === 'taskStatus') say({ event: 'polled', task: message.task });
            if (message.type === 'error') throw message.error;
            if (message.type === 'result') return message.result;
        }
    },
    finish: ({ task }) => client.experimental.tasks.getTaskResult(task, types.CallToolResultSchema),
    result: ({ task }) => client.experimental.tasks.getTaskResult(task, types.CallToolResultSchema),
    get: ({ task }) => client.experimental.tasks.getTask(task),
    cancel: ({ task }) => client.experimental.tasks.cancelTask(task),
    list: () => pages((cursor) => client.experimental.tasks.listTasks(cursor))
});
