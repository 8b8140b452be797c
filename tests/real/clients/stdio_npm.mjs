// A client of npm @modelcontextprotocol/client 2.x that starts the proxy before the legacy fixture.
//
//     stdio_npm.mjs PACKAGE MODE COMMAND ARGUMENT...
//
// PACKAGE is the folder of the package; MODE is its own: `auto` asks `server/discover` of a process that it
// starts for that alone and ends with SIGTERM, then starts another to work with; `legacy` opens with
// `initialize`. Prints one JSON line a step. The package itself knows no tasks, so slow calls block.

import { pathToFileURL } from 'node:url';

const [folder, mode, command, ...args] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${folder}/dist/${file}`).href);
const { Client } = await load('index.mjs');
const { StdioClientTransport } = await load('stdio.mjs');

const say = (step, facts = {}) => console.log(JSON.stringify({ step, ...facts }));
const text = (result) => result.content.map((block) => block.text).join('');

const client = new Client(
    { name: 'npm-client', version: '1' },
    { capabilities: { elicitation: {} }, versionNegotiation: { mode } }
);
client.setRequestHandler('elicitation/create', (request) => {
    say('asked', { message: request.params.message });
    return { action: 'accept', content: { confirm: true } };
});

const began = performance.now();
await client.connect(new StdioClientTransport({ command, args, env: process.env, cwd: process.cwd() }));
say('connected', { tookMs: Math.round(performance.now() - began) });

const { tools } = await client.listTools();
say('listed', { version: client.getNegotiatedProtocolVersion(), tools: tools.map((tool) => tool.name) });
say('called', { text: text(await client.callTool({ name: 'greet', arguments: { name: 'Ada' } })) });

const progress = [];
await client.callTool(
    { name: 'progress_job', arguments: { steps: 3, delay: 0.1 } },
    { onprogress: (update) => progress.push(update.progress) }
);
say('progress', { seen: progress });
const slow = await client.callTool({ name: 'slow_compute', arguments: { seconds: 1, label: 'watched' } });
say('slow', { text: text(slow) });

say('answered', { text: text(await client.callTool({ name: 'confirm_delete', arguments: { filename: 'f' } })) });

const job = { name: 'cancellable_job', arguments: { seconds: 60, label: 'job' } };
try {
    await client.callTool(job, { signal: AbortSignal.timeout(1000) });
} catch (error) {
    say('cancelled', { gave_up: true, error: String(error) });
}
say('still there', { text: text(await client.callTool({ name: 'greet', arguments: { name: 'Ada' } })) });

await client.close();
say('ended');
