// Locks of redlock, for the benchmark; README.md beside this folder has the protocol.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(import.meta.url);
const { default: Redis } = require("ioredis");
// Its module for import is not marked as one: the other is loaded.
const { default: Redlock } = require("redlock");

const version = (library) => {
  const manifest = new URL(`node_modules/${library}/package.json`, import.meta.url);
  return `${library} ${JSON.parse(readFileSync(manifest, "utf8")).version}`;
};

const MAX_CYCLES = 5_000_000;

const bucket = (nanos) => Math.floor(16 * Math.log2(Math.max(Number(nanos), 1)));

const add = (histogram, nanos) => {
  const at = bucket(nanos);
  histogram[at] = (histogram[at] ?? 0) + 1;
};

async function cycles(redlock, name, end, result, task) {
  let now = process.hrtime.bigint();
  while (now < end && result.grants[task] < MAX_CYCLES) {
    const start = now;
    const lock = await redlock.acquire([name], 10_000);
    const granted = process.hrtime.bigint();
    await lock.release();
    now = process.hrtime.bigint();
    result.grants[task] += 1;
    add(result.wait, granted - start);
    add(result.cycle, now - start);
  }
}

async function run(redlock, names, millis) {
  const start = process.hrtime.bigint();
  const end = start + BigInt(millis) * 1_000_000n;
  const result = { seconds: 0, grants: names.map(() => 0), wait: {}, cycle: {} };
  await Promise.all(names.map((name, task) => cycles(redlock, name, end, result, task)));
  result.seconds = Number(process.hrtime.bigint() - start) / 1e9;
  return result;
}

async function main() {
  const [, server, tasks, count, warm, length, prefix] = process.argv.slice(2);
  setTimeout(() => process.exit(3), Number(warm) + Number(length) + 60_000);
  const names = Array.from({ length: Number(tasks) }, (_, task) => `${prefix}-${task % Number(count)}`);
  const [host, port] = server.split(":");
  const client = new Redis({ host, port: Number(port) });
  // Asks again after 1 ms; by default after 200 ms and as much as 100 more, ten times.
  const redlock = new Redlock([client], { retryCount: 60_000, retryDelay: 1, retryJitter: 1 });
  await run(redlock, names, warm);
  console.log(JSON.stringify({ ready: `${version("redlock")}, Node ${process.versions.node}` }));
  let started = false;
  const input = createInterface({ input: process.stdin });
  input.on("line", async () => {
    if (started) return;
    started = true;
    console.log(JSON.stringify(await run(redlock, names, length)));
  });
  input.on("close", () => process.exit(0));
}

await main();
