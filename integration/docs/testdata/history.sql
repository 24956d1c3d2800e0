SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date);
INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, user_id, node)
	VALUES (now(), 1, 100, 'admitted', 'web', 'acme', 'caddy');
SELECT rate_limit_upkeep();
INSERT INTO rate_limit_metrics (granularity, time, user_id, prefix, requests, settled, last_request,
	durations)
	SELECT granularity, date_trunc(granularity, now(), 'UTC'), 'acme', 'web', 1, 1, now(), '{1}'
	FROM unnest(ARRAY['minute', 'hour', 'day']) AS granularity;
