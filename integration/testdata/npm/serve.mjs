// Runs limits for another program: each line of stdin is a request in JSON,
// { id, do: "tables" | "hit", hit }, and each line of stdout the answer to one,
// { id, success, error }. It ends with its stdin. DATABASE_URL names the database.

import { createInterface } from "node:readline";
import pg from "pg";
import { hit, tables } from "./limits.mjs";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 8 });

async function answer(line) {
  const request = JSON.parse(line);
  const reply = { id: request.id };
  try {
    if (request.do === "tables") {
      await tables(pool);
    } else {
      reply.success = await hit(pool, request.hit);
    }
  } catch (error) {
    reply.error = String(error);
  }
  console.log(JSON.stringify(reply));
}

const running = new Set();
for await (const line of createInterface({ input: process.stdin })) {
  const one = answer(line).finally(() => running.delete(one));
  running.add(one);
}
await Promise.all(running);
await pool.end();
