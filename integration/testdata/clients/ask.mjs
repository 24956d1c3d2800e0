// Asks the server of the first argument, and prints as JSON what each client has got. "waits" is a client that
// has set a timer of more than a minute.
import got from 'got';
import axios from 'axios';
import axiosRetry from 'axios-retry';
import { parseRateLimit } from 'ratelimit-header-parser';

const server = process.argv[2];

// outcome is the status of an answer, or "waits" where a client has set a long timer.
function outcome(ask) {
  const original = globalThis.setTimeout;
  return new Promise((resolve) => {
    globalThis.setTimeout = (f, ms, ...args) => {
      if (ms > 60000) {
        resolve('waits');
        return original(() => {}, 1000000);
      }
      return original(f, ms, ...args);
    };
    ask().then((r) => resolve(r.statusCode ?? r.status), (e) => resolve(e.response?.statusCode ?? e.response?.status ?? String(e)));
  }).finally(() => { globalThis.setTimeout = original; });
}

const retrying = (settings) => {
  const client = axios.create();
  axiosRetry(client, settings);
  return client;
};
const bounded = (e) => e.response?.status === 429 && !(e.response.headers['retry-after'] > 60);

const all = {};
for (const fields of ['x', 'ietf', 'x ietf']) {
  const url = `${server}/?fields=${encodeURIComponent(fields)}`;
  const first = parseRateLimit(await fetch(url));
  all[fields] = {
    parsed: first.limit,
    got: await outcome(() => got(url)),
    gotBounded: await outcome(() => got(url, { retry: { maxRetryAfter: 60000 } })),
    axios: await outcome(() => retrying({ retries: 3 }).get(url)),
    axiosBounded: await outcome(() => retrying({ retries: 3, retryCondition: bounded }).get(url)),
  };
}
console.log(JSON.stringify(all));
process.exit(0);
