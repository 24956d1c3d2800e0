// Runs the query on standard input in DuckDB, and prints the rows as JSON: a list of rows, each a list of the
// values as texts.
import { text } from 'node:stream/consumers';
import { DuckDBInstance } from '@duckdb/node-api';

const instance = await DuckDBInstance.create(':memory:', { threads: '2', memory_limit: '1GB' });
const connection = await instance.connect();
await connection.run("SET TimeZone = 'UTC'");
const result = await connection.runAndReadAll(await text(process.stdin));
console.log(JSON.stringify(result.getRows().map((row) => row.map((v) => (v === null ? 'NULL' : String(v))))));
