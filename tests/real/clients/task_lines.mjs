// The lines that a test and a client program of this folder exchange; tests/real/task_client.py has the words.

import { createInterface } from 'node:readline';

export const say = (facts) => process.stdout.write(`${JSON.stringify(facts)}\n`);

const waiting = new Map();
let asked = 0;

// Put a question of the server to whoever reads our stdout; its answer.
export function ask(method, params = {}) {
    asked += 1;
    const number = asked;
    return new Promise((resolve) => {
        waiting.set(number, resolve);
        say({ asked: number, method, params });
    });
}

// Do what stdin says, several things at once, until it ends. `verbs` has a function for each.
export async function obey(verbs) {
    for await (const line of createInterface({ input: process.stdin })) {
        const { n, do: what, answer, result, ...details } = JSON.parse(line);
        if (answer !== undefined) {
            waiting.get(answer)(result);
            waiting.delete(answer);
            continue;
        }
        verbs[what](details).then(
            (done) => say({ n, done: done ?? null }),
            (error) => say({ n, error: { code: error.code ?? null, message: error.message, data: error.data } })
        );
    }
    process.exit(0);
}

// All pages of a list, one after the other.
export async function pages(page, found = [], cursor = undefined) {
    const { tasks, nextCursor } = await page(cursor);
    found.push(...tasks);
    return nextCursor === undefined ? found : pages(page, found, nextCursor);
}
