-- The notices of counters that have reached a percentage of their quota. The percentages are in the policy,
-- which may be on another server, so that proxies pass them.

-- TABLE rate_limit_notices: Counters that have reached a percentage of their quota: one row in each period
-- for each quota. notices deliver, or a job of yours, takes rows with FOR UPDATE SKIP LOCKED, and sets
-- taken_at. A deleted row would come back.
--   rule: The rule, by the name by which it counts.
--   limit_name: The limit.
--   key: The key of the counter, such as the user.
--   period: When the window of the counter began.
--   percent: The percentage, one of notify of the limit.
--   used: What was used of the quota when the row was made.
--   quota: The quota of the counter.
--   at: When the row was made.
--   resets_at: When the window of the counter ends. NULL: it is not known.
--   void_at: When upkeep found that it is no longer true, since a reset or a correction has made used
--     smaller: it may come again. infinity: it is true, or its window has ended.
--   taken_at: When the row was delivered, or a job of yours has taken it. NULL: not yet.
--   id: The idempotency key of each try to deliver the row.
--   tried_at: When it was first tried to deliver the row. NULL: not yet.
--   try_at: When notices deliver tries the row again. infinity: it failed for a day and is not tried again.
--   currency: The currency of money, as rate_limit_ledger_retention had it. NULL: no money, or it had none.
--   error: Why the last try failed. NULL: it did not.

-- Makes the notices of counters, a list of objects with prefix, key, durable, unit, quota and percents, and
-- returns how many are new. Each new one is also a notification of the channel rate_limit_notices.
CREATE OR REPLACE FUNCTION rate_limit_notice(counters jsonb) RETURNS bigint LANGUAGE plpgsql
	SECURITY DEFINER SET lock_timeout = '100ms' AS $$
DECLARE
	made rate_limit_notices;
	n bigint := 0;
BEGIN
	FOR made IN INSERT INTO rate_limit_notices AS x (rule, limit_name, key, period, percent, used, quota,
			resets_at, currency)
		SELECT split_part(o.prefix, '/', 2), split_part(o.prefix, '/', 3), c.key, c.window_start, p.percent,
			rate_limit_decimal(c.count, o.unit), rate_limit_decimal(o.quota, o.unit), c.expires_at,
			(SELECT max(r.currency) FROM rate_limit_ledger_retention r WHERE o.unit = 'money')
		FROM jsonb_to_recordset($1) AS o(prefix text, key text, durable boolean, unit text, quota bigint,
				percents bigint[])
			-- Postgres finds the row by the condition on key, and a shard by the list of keys.
			CROSS JOIN LATERAL rate_limit_counters(o.prefix, o.durable, ARRAY[o.key]) c
			CROSS JOIN LATERAL unnest(o.percents) AS p(percent)
		WHERE c.key COLLATE "C" = o.key AND o.quota > 0
			AND c.count::numeric * 100 >= o.quota::numeric * p.percent
			AND c.window_start IS NOT NULL AND o.prefix LIKE 'rule/%/%'
		ORDER BY 1, 2, 3, 4, 5 ON CONFLICT DO NOTHING RETURNING x.*
	LOOP
		n := n + 1;
		PERFORM pg_notify('rate_limit_notices', json_build_object('rule', made.rule, 'limit', made.limit_name,
			'key', left(made.key, 1000), 'period', made.period, 'percent', made.percent)::text);
	END LOOP;
	RETURN n;
END $$;

-- Makes the notices that are missing, marks those that are no longer true, and returns how many are new. It
-- runs at most every 5 seconds, stops after about 100 ms, and goes on there the next time. Proxies run it.
--
-- Finds what proxies that were killed did not report, and marks notices that are no longer true. It needs the
-- policy in the same database. The counters of a limit are read in slices, in the order of the primary key.
-- Those that are below each percentage of each quota of the limit are left out first, and those that have all
-- their notices if no override can change their quota, because finding the quota of a counter takes longer.
-- Therefore it does so for at most 200 counters in a slice. On Citus a slice has all counters of a limit.
CREATE OR REPLACE FUNCTION rate_limit_notice_upkeep() RETURNS bigint LANGUAGE plpgsql
	SECURITY DEFINER SET lock_timeout = '100ms' SET jit = off AS $$
DECLARE
	until CONSTANT timestamptz := clock_timestamp() + interval '80 ms';
	size CONSTANT int := CASE WHEN to_regprocedure('rate_limit_shards()') IS NULL THEN 5000 END;
	place rate_limit_ledger_retention;
	lim record;
	slice record;
	looked boolean := false;
	made bigint := 0;
BEGIN
	IF to_regclass('rate_limit_rules') IS NULL THEN
		RETURN 0;
	ELSIF NOT EXISTS (SELECT FROM rate_limit_rule_limits WHERE notify IS NOT NULL)
		OR NOT pg_try_advisory_xact_lock(1885827695) THEN
		RETURN 0;
	END IF;
	UPDATE rate_limit_ledger_retention r SET noticed_at = now()
		WHERE noticed_at NOT BETWEEN now() - interval '5 s' AND now() + interval '5 s' RETURNING * INTO place;
	IF NOT FOUND THEN
		RETURN 0;
	END IF;
	LOOP
		-- An empty key says that the limit is done.
		SELECT l.rule, l.name, l.unit, p.prefix, coalesce(l.durable, l.unit <> 'requests') AS durable,
			coalesce(l.burst, l.events) AS quota, CASE WHEN NOT EXISTS (SELECT FROM rate_limit_overrides o
				WHERE (o.rule, o.limit_name) = (l.rule, l.name)) THEN l.notify END AS percents,
			least(l.events, (SELECT min(o.events) FROM rate_limit_overrides o
				WHERE (o.rule, o.limit_name) = (l.rule, l.name)))::numeric
				* (SELECT min(n) FROM unnest(l.notify) n) AS low INTO lim
		FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule AND r.mode <> 'off'
			CROSS JOIN LATERAL (SELECT rate_limit_prefix(coalesce(r.counted_as, r.name),
				coalesce(l.counted_as, l.name)) COLLATE "C" AS prefix) p
		WHERE l.notify IS NOT NULL AND (p.prefix > place.noticed_limit
			OR p.prefix = place.noticed_limit AND place.noticed_key <> '') ORDER BY p.prefix LIMIT 1;
		IF NOT FOUND THEN
			EXIT WHEN looked OR place.noticed_limit = '';
			place.noticed_limit := '';
			CONTINUE;
		END IF;
		looked := true;
		place.noticed_key := CASE lim.prefix WHEN place.noticed_limit THEN place.noticed_key ELSE '' END;
		place.noticed_limit := lim.prefix;
		EXECUTE format('SELECT CASE WHEN count(*) = $1 THEN max(key) END AS last,
				array_agg(key ORDER BY key) FILTER (WHERE count::numeric * 100 >= $2
					AND ($4 IS NULL OR EXISTS (SELECT FROM unnest($4) p
						WHERE c.count::numeric * 100 >= $5::numeric * p AND NOT EXISTS (
							SELECT FROM rate_limit_notices n WHERE (n.rule, n.limit_name, n.key, n.period,
								n.percent, n.quota, n.void_at) = (split_part(%1$L, ''/'', 2),
								split_part(%1$L, ''/'', 3), c.key, c.window_start, p, $6, ''infinity'')))))
				AS keys
			FROM (SELECT c.key COLLATE "C" AS key, c.count, c.window_start
				FROM rate_limit_counters(%1$L, %2$L) c WHERE c.key COLLATE "C" >= $3
				ORDER BY c.key COLLATE "C" LIMIT %3$L) c',
			lim.prefix, lim.durable, size) INTO slice USING size, lim.low, place.noticed_key, lim.percents,
			lim.quota, rate_limit_decimal(lim.quota, lim.unit);
		IF size IS NOT NULL AND cardinality(slice.keys) > 200 THEN
			slice.keys := slice.keys[:200];
			slice.last := slice.keys[200];
		END IF;
		-- A row that is being delivered is left for the next time.
		UPDATE rate_limit_notices v SET void_at = clock_timestamp() WHERE v.ctid = ANY (ARRAY(
			SELECT n.ctid FROM rate_limit_notices n
			WHERE (n.rule, n.limit_name) = (split_part(lim.prefix, '/', 2), split_part(lim.prefix, '/', 3))
				AND n.key >= place.noticed_key AND (slice.last IS NULL OR n.key <= slice.last)
				AND n.void_at = 'infinity' AND n.resets_at > now() AND NOT EXISTS (
					SELECT FROM rate_limit_counters(lim.prefix, lim.durable, ARRAY[n.key]) c
					WHERE c.key COLLATE "C" = n.key AND c.window_start = n.period
						AND rate_limit_decimal(c.count, lim.unit) * 100 >= n.quota * n.percent)
			FOR UPDATE OF n SKIP LOCKED));
		IF slice.keys IS NOT NULL THEN
			made := made + rate_limit_notice((SELECT coalesce(jsonb_agg(c), '[]')
				FROM rate_limit_noticed(lim.rule, lim.name, slice.keys) c));
		END IF;
		place.noticed_key := coalesce(slice.last || E'\x01', ''); -- the next possible key
		EXIT WHEN clock_timestamp() > until;
	END LOOP;
	UPDATE rate_limit_ledger_retention r SET noticed_limit = place.noticed_limit,
		noticed_key = place.noticed_key;
	RETURN made;
END $$;
