// Offers the functions of limits.mjs to tests by HTTP. POST /tables creates the tables. POST /hit charges the
// request that its body describes in JSON, and answers true if the request may pass. The argument is the port,
// and DATABASE_URL names the database.

import { createServer } from "node:http";
import { json } from "node:stream/consumers";
import pg from "pg";
import { hit, tables } from "./limits.mjs";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 8 });

const server = createServer(async (request, response) => {
  try {
    const passes = request.url === "/tables" ? await tables(pool) : await hit(pool, await json(request));
    response.end(JSON.stringify(passes ?? true));
  } catch (error) {
    response.writeHead(500).end(String(error));
  }
}).listen(Number(process.argv[2]), "127.0.0.1");

process.on("SIGTERM", async () => {
  server.close();
  server.closeAllConnections();
  await pool.end();
});
