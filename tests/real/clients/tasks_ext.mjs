// A client of npm @modelcontextprotocol/ext-tasks over @modelcontextprotocol/client 2.x, in its 2025 mode.
//
//     tasks_ext.mjs NODE_MODULES TARGET
//
// NODE_MODULES is the folder that has the packages. TARGET is JSON: {"url", "headers"}, or {"command"}. The
// client opens with `initialize`, and so ext-tasks works with 2025 tasks. A question that comes outside a task
// goes to the one plain call in flight; with several in flight ext-tasks answers it by itself: `cancel`.

import { pathToFileURL } from 'node:url';

import { ask, obey, pages, say } from './task_lines.mjs';

const [folder, encoded] = process.argv.slice(2);
const target = JSON.parse(encoded);
const load = (file) => import(pathToFileURL(`${folder}/@modelcontextprotocol/${file}`).href);
const { Client, StreamableHTTPClientTransport } = await load('client/dist/index.mjs');
const { StdioClientTransport } = await load('client/dist/stdio.mjs');
const tasks = await load('ext-tasks/dist/client/index.js');

const ENDPOINT = 'the-server';
const METHODS = { elicitation: 'elicitation/create', sampling: 'sampling/createMessage', roots: 'roots/list' };
const TOKEN = 'ext-progress';
const complain = (error) => say({ event: 'complained', message: error.message });
let client;
let session;

function transport() {
    if (target.url) {
        return new StreamableHTTPClientTransport(new URL(target.url), { requestInit: { headers: target.headers } });
    }
    const [command, ...args] = target.command;
    return new StdioClientTransport({ command, args, env: process.env, cwd: process.cwd() });
}

// The end of a task, with its polls and notified changes on the way.
async function settled(execution) {
    const onEvent = (event) => {
        if (event.type === 'task') say({ event: 'polled', task: event.task.raw });
    };
    const { outcome } = await execution.settle({ onEvent });
    return tasks.resultFromTaskOutcome(outcome);
}

const asTask = ({ name, arguments: given, ttl }) =>
    session.callTool(name, given, {
        task: { preference: 'require', retentionMs: ttl },
        metadata: { progressToken: TOKEN }
    });

await obey({
    async connect() {
        const capabilities = { elicitation: { form: {}, url: {} }, sampling: {}, roots: { listChanged: true } };
        client = new Client(
            { name: 'ext-tasks', version: '1' },
            { capabilities, versionNegotiation: { mode: 'legacy' } }
        );
        client.onerror = complain;
        // The client's own handler knows a token only until the call is answered, and that is when a task begins.
        client.setNotificationHandler('notifications/progress', ({ params }) => say({ event: 'progress', ...params }));
        client.fallbackNotificationHandler = async ({ method, params }) => {
            if (method === 'notifications/tasks/status') say({ event: 'notified', task: params });
        };
        await client.connect(transport());
        session = tasks.createTaskSessionFromClient(client, {
            endpointId: ENDPOINT,
            onInputRequest: ({ kind, params }) => ask(METHODS[kind], params),
            onError: complain
        });
        return { version: client.getNegotiatedProtocolVersion(), capabilities: client.getServerCapabilities() };
    },
    async close() {
        await session.close();
        await client.transport.terminateSession?.();
        await client.close();
    },
    tools: async () => (await client.listTools()).tools,
    async call({ name, arguments: given }) {
        const execution = await session.callTool(name, given);
        return tasks.resultFromTaskOutcome((await execution.settle()).outcome);
    },
    async start(details) {
        const execution = await asTask(details);
        await execution.detach(); // else `session.close()` would cancel the task
        return { task: { taskId: execution.handle.taskId } };
    },
    async run(details) {
        const execution = await asTask(details);
        say({ event: 'created', task: { taskId: execution.handle.taskId } });
        return settled(execution);
    },
    async finish({ task }) {
        const reference = { endpointId: ENDPOINT, generation: 'v1', taskId: task, originalOperation: 'tools/call' };
        return settled(await session.resumeTask(reference));
    },
    async result({ task }) {
        return tasks.resultFromTaskOutcome(await session.task(task).result());
    },
    get: async ({ task }) => (await session.task(task).snapshot()).raw,
    cancel: ({ task }) => session.cancelTask(task),
    list: async () => (await pages((cursor) => session.listTasks(cursor))).map((task) => task.raw)
});
