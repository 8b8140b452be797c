// A client of npm @modelcontextprotocol/sdk 1.x before a server that speaks the modern era alone.
//
//     legacy_npm1.mjs NODE_MODULES TARGET MARK
//
// Prints one JSON line a step; what they are is in legacy_sdk1.py.

import { pathToFileURL } from 'node:url';

const [folder, encoded, mark] = process.argv.slice(2);
const target = JSON.parse(encoded);
const load = (file) => import(pathToFileURL(`${folder}/@modelcontextprotocol/sdk/dist/esm/${file}`).href);
const { Client } = await load('client/index.js');
const { StdioClientTransport } = await load('client/stdio.js');
const { StreamableHTTPClientTransport } = await load('client/streamableHttp.js');
const types = await load('types.js');

const say = (step, facts = {}) => process.stdout.write(`${JSON.stringify({ step, ...facts })}\n`);
const text = (result) => result.content.map((block) => block.text).join('');

const client = new Client({ name: 'npm1', version: '1' }, { capabilities: { elicitation: {}, sampling: {} } });
client.setRequestHandler(types.ElicitRequestSchema, ({ params }) => {
    say('elicited', { message: params.message });
    return { action: 'accept', content: { name: 'Ada' } };
});
client.setRequestHandler(types.CreateMessageRequestSchema, () => ({
    role: 'assistant',
    content: { type: 'text', text: '42' },
    model: 'm'
}));
const updated = new Promise((resolve) => {
    client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, resolve);
});

const [command, ...args] = target.command ?? [];
await client.connect(
    target.url
        ? new StreamableHTTPClientTransport(new URL(target.url))
        : new StdioClientTransport({ command, args, env: process.env, cwd: process.cwd() })
);
say('greeted', { server: client.getServerVersion().name });
say('tools', { names: (await client.listTools()).tools.map((tool) => tool.name) });
const call = (name, given = {}, options = {}) => client.callTool({ name, arguments: given }, undefined, options);
say('called', { text: text(await call('greet', { name: 'Ada' })) });
say('numbers', { text: text(await call('numbers')) });
const seen = [];
await call('count', { steps: 3 }, { onprogress: ({ progress }) => seen.push(progress) });
say('progress', { seen });
say('asked', { text: text(await call('ask')) });
say('failed', { is_error: (await call('fail')).isError });
const prompt = await client.getPrompt({ name: 'hello', arguments: { name: 'Ada' } });
const prompts = (await client.listPrompts()).prompts.map(({ name }) => name);
say('prompted', { names: prompts, text: prompt.messages[0].content.text });
const { uri } = (await client.listResources()).resources[0];
say('read', { text: (await client.readResource({ uri })).contents[0].text });
await client.readResource({ uri: 'note://none' }).catch(({ code }) => say('missing', { code }));
await client.subscribeResource({ uri });
await call('touch');
await updated;
await client.unsubscribeResource({ uri });
say('updated');
await client.ping();
await call('wait', { mark }, { timeout: 1000 }).catch(() => undefined); // the SDK cancels what took too long
say('still there', { text: text(await call('greet', { name: 'Ada' })) });
await client.transport.terminateSession?.();
await client.close();
say('ended');
process.exit(0);
