// Charges limits in Postgres in the way of the npm library pg-ratelimit, so that tests can let a Node program
// and proxies share limits without the library. As with the library, the tables have the same columns, the
// same transactions change rows with the same results, and the time is this process's clock in milliseconds.

const columns = `
  prefix text not null, key text not null,
  count bigint, prev_count bigint, window_start timestamptz,
  tokens double precision, last_refill timestamptz,
  expires_at timestamptz not null,
  primary key (prefix, key)`;

// tables creates the two tables if they are missing, with the eight columns that the library knows. A program
// that uses the library does this whenever it starts.
export async function tables(pool) {
  await pool.query(`
    create unlogged table if not exists rate_limit_ephemeral (${columns});
    create table if not exists rate_limit_durable (${columns});
    create index if not exists idx_rate_limit_ephemeral_cleanup on rate_limit_ephemeral (prefix, expires_at);
    create index if not exists idx_rate_limit_durable_cleanup on rate_limit_durable (prefix, expires_at);`);
}

// hit charges a request, { algorithm, table, prefix, key, cost, limit, windowMs }, to its key. It resolves to
// true if the request may pass.
export async function hit(pool, hit) {
  const now = Date.now();
  const success = await { fixed_window: fixedWindow, sliding_window: slidingWindow }[hit.algorithm](pool, hit, now);
  if (Math.random() < 0.1) {
    await pool.query(`delete from ${hit.table} where prefix = $1 and expires_at < $2`, [hit.prefix, new Date(now)]);
  }
  return success;
}

// fixedWindow counts the request in one statement, even if it may not pass. A window has ended when the clock
// is later than expires_at.
async function fixedWindow(pool, hit, now) {
  const { rows } = await pool.query(
    `insert into ${hit.table} as old (prefix, key, count, window_start, expires_at) values ($1, $2, $3, $4, $5)
    on conflict (prefix, key) do update set (count, window_start, expires_at) = (
      select excluded.count, excluded.window_start, excluded.expires_at where old.expires_at < excluded.window_start
      union all
      select old.count + excluded.count, old.window_start, old.expires_at where old.expires_at >= excluded.window_start)
    returning count`,
    [hit.prefix, hit.key, hit.cost, new Date(now), new Date(now + hit.windowMs)],
  );
  return Number(rows[0].count) <= hit.limit;
}

// slidingWindow reads the row, decides and writes the row in one transaction, which locks the row meanwhile.
// It counts only a request that may pass.
async function slidingWindow(pool, hit, now) {
  const client = await pool.connect();
  try {
    await client.query("begin");
    if (hit.table === "rate_limit_durable") {
      await client.query("set local synchronous_commit = off");
    }
    await client.query(
      `insert into ${hit.table} (prefix, key, count, prev_count, window_start, expires_at) values ($1, $2, 0, 0, $3, $4)
      on conflict (prefix, key) do nothing`,
      [hit.prefix, hit.key, new Date(now), new Date(now + 2 * hit.windowMs)],
    );
    const { rows } = await client.query(
      `select count, prev_count, window_start from ${hit.table} where prefix = $1 and key = $2 for update`,
      [hit.prefix, hit.key],
    );
    const state = slide(rows[0], now, hit.windowMs);
    const weight = 1 - (now - state.start) / hit.windowMs;
    const success = state.previous * weight + state.count + hit.cost <= hit.limit;
    if (success) {
      await client.query(
        `insert into ${hit.table} (prefix, key, count, prev_count, window_start, expires_at) values ($1, $2, $3, $4, $5, $6)
        on conflict (prefix, key) do update set count = excluded.count, prev_count = excluded.prev_count,
          window_start = excluded.window_start, expires_at = excluded.expires_at`,
        [hit.prefix, hit.key, state.count + hit.cost, state.previous, new Date(state.start), new Date(state.start + 2 * hit.windowMs)],
      );
    }
    await client.query("commit");
    return success;
  } catch (error) {
    await client.query("rollback");
    throw error;
  } finally {
    client.release();
  }
}

// slide returns the counters that a row has now: as they are stored, or moved on by one window or more.
function slide(row, now, windowMs) {
  const start = row.window_start.getTime();
  if (now < start + windowMs) {
    return { count: Number(row.count), previous: Number(row.prev_count), start };
  }
  if (now < start + 2 * windowMs) {
    return { count: 0, previous: Number(row.count), start: start + windowMs };
  }
  return { count: 0, previous: 0, start: now };
}
