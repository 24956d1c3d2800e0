-- The notices of counters that have reached a percentage of their quota. The percentages are in the policy,
-- which may be on another server, so that proxies pass them.

CREATE TABLE IF NOT EXISTS rate_limit_notices (
	rule       text NOT NULL,
	limit_name text NOT NULL,
	key        text COLLATE "C" NOT NULL,
	period     timestamptz NOT NULL,
	percent    bigint NOT NULL,
	used       numeric NOT NULL,
	quota      numeric NOT NULL,
	at         timestamptz NOT NULL DEFAULT now(),
	taken_at   timestamptz,
	PRIMARY KEY (rule, limit_name, key, period, percent)
);
CREATE INDEX IF NOT EXISTS rate_limit_notices_to_take ON rate_limit_notices (at) WHERE taken_at IS NULL;
COMMENT ON TABLE rate_limit_notices IS
	'Counters that have reached a percentage of their quota: one row in each period. A job of yours takes '
	'rows with FOR UPDATE SKIP LOCKED, and sets taken_at. A deleted row would come back.';
COMMENT ON COLUMN rate_limit_notices.rule IS 'The rule, by the name by which it counts.';
COMMENT ON COLUMN rate_limit_notices.limit_name IS 'The limit.';
COMMENT ON COLUMN rate_limit_notices.key IS 'The key of the counter, such as the user.';
COMMENT ON COLUMN rate_limit_notices.period IS 'When the window of the counter began.';
COMMENT ON COLUMN rate_limit_notices.percent IS 'The percentage, one of notify of the limit.';
COMMENT ON COLUMN rate_limit_notices.used IS 'What was used of the quota when the row was made.';
COMMENT ON COLUMN rate_limit_notices.quota IS 'The quota of the counter.';
COMMENT ON COLUMN rate_limit_notices.at IS 'When the row was made.';
COMMENT ON COLUMN rate_limit_notices.taken_at IS 'When a job of yours has taken the row. NULL: not yet.';

CREATE OR REPLACE FUNCTION rate_limit_notice(counters jsonb) RETURNS bigint LANGUAGE plpgsql
	SECURITY DEFINER AS $$
DECLARE
	made rate_limit_notices;
	n bigint := 0;
BEGIN
	FOR made IN INSERT INTO rate_limit_notices AS x (rule, limit_name, key, period, percent, used, quota)
		SELECT split_part(o.prefix, '/', 2), split_part(o.prefix, '/', 3), c.key, c.window_start, p.percent,
			rate_limit_decimal(c.count, o.unit), rate_limit_decimal(o.quota, o.unit)
		FROM jsonb_to_recordset($1) AS o(prefix text, key text, durable boolean, unit text, quota bigint,
				percents bigint[])
			CROSS JOIN LATERAL rate_limit_counters(o.prefix, o.durable, ARRAY[o.key]) c
			CROSS JOIN LATERAL unnest(o.percents) AS p(percent)
		WHERE o.quota > 0 AND c.count::numeric * 100 >= o.quota::numeric * p.percent
			AND c.window_start IS NOT NULL AND o.prefix LIKE 'rule/%/%'
		ORDER BY 1, 2, 3, 4, 5 ON CONFLICT DO NOTHING RETURNING x.*
	LOOP
		n := n + 1;
		PERFORM pg_notify('rate_limit_notices', json_build_object('rule', made.rule, 'limit', made.limit_name,
			'key', left(made.key, 1000), 'period', made.period, 'percent', made.percent)::text);
	END LOOP;
	RETURN n;
END $$;
COMMENT ON FUNCTION rate_limit_notice IS
	'Makes the notices of counters, a list of objects with prefix, key, durable, unit, quota and percents, '
	'and returns how many are new. Each new one is also a notification of the channel rate_limit_notices.';

-- Finds what proxies that were killed did not report. It needs the policy in the same database.
CREATE OR REPLACE FUNCTION rate_limit_notice_upkeep() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	IF to_regclass('rate_limit_rules') IS NULL THEN
		RETURN 0;
	ELSIF NOT EXISTS (SELECT FROM rate_limit_rule_limits WHERE notify IS NOT NULL)
		OR NOT pg_try_advisory_xact_lock(1885827695) THEN
		RETURN 0;
	END IF;
	UPDATE rate_limit_ledger_retention r SET noticed_at = now()
		WHERE noticed_at NOT BETWEEN now() - interval '5 s' AND now() + interval '5 s';
	IF NOT FOUND THEN
		RETURN 0;
	END IF;
	RETURN (SELECT rate_limit_notice(coalesce(jsonb_agg(c), '[]')) FROM rate_limit_noticed() c);
END $$;
COMMENT ON FUNCTION rate_limit_notice_upkeep IS
	'Makes the notices that are missing, at most every 5 seconds, and returns how many. Proxies run it.';
