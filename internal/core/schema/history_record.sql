-- The functions with which a proxy writes the history. A batch is one transaction:
-- rate_limit_begin_batch, and then the others. All of them write their rows in the order of the
-- primary key, so that two proxies do not wait for each other in a circle.
--
-- Drivers cannot send NULL in arrays. An empty text stands for NULL, and so does an invalid number: 0 for
-- quota, key_id and status, a negative one for retry_after_ms.
--
-- The arrays of the audit log are unnested in the SELECT list, where they advance together, because in
-- FROM their elements would be stored first.

CREATE OR REPLACE FUNCTION rate_limit_begin_batch(writer text, node text, region text, batch bigint,
	written bigint, dropped bigint) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	-- A connection on which decisions wait, too, must not wait long for a row that a session has locked.
	PERFORM set_config('lock_timeout', '1s', true);
	INSERT INTO rate_limit_writers AS w (writer, node, region, batch, written, dropped, seen)
		VALUES ($1, $2, nullif($3, ''), $4, $5, $6, now())
	ON CONFLICT (writer) DO UPDATE SET node = excluded.node, region = excluded.region, batch = excluded.batch,
		written = excluded.written, dropped = excluded.dropped, seen = excluded.seen
		WHERE w.batch < excluded.batch;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'batch % of this writer is written already', $4 USING ERRCODE = 'unique_violation';
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_begin_batch IS
	'The first statement of a transaction that writes a batch. It fails with unique_violation if the batch, '
	'or a later one, is written: a batch with an unknown outcome can be sent again. The transaction waits '
	'for a lock for 1 s at most. written and dropped are totals.';

CREATE OR REPLACE FUNCTION rate_limit_record_audit(node text, region text, times bigint[], decisions text[],
	reasons text[], prefixes text[], limits text[],
	keys text[], users text[], tiers text[], addresses text[], hosts text[], methods text[], paths text[],
		alsos text[], costs bigint[], counts bigint[],
	quotas bigint[], remainings bigint[], key_ids bigint[], retries bigint[], durations bigint[],
		statuses bigint[], weights text[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	FOR attempt IN 1..2 LOOP
		BEGIN
			INSERT INTO rate_limit_audit (time, cost, count, quota, remaining, key_id, retry_after_ms,
				duration_us, weight, status, decision, reason, prefix, limit_name, key,
				user_id, tier, address, host, method, path, node, region, also, id)
			SELECT timestamptz 'epoch' + r.t * interval '1 microsecond', r.cost, r.n, nullif(r.quota, 0), CASE
				WHEN r.quota <> 0 THEN r.remaining END, nullif(r.key_id, 0),
				CASE WHEN r.retry >= 0 THEN r.retry END, r.duration, r.weight::double precision,
					nullif(r.status, 0), r.decision, nullif(r.reason, ''), r.prefix,
				nullif(r.limit_name, ''), nullif(r.key, ''), nullif(r.user_id, ''), nullif(r.tier, ''),
					nullif(r.address, '')::inet, nullif(r.host, ''),
				nullif(r.method, ''), nullif(r.path, ''), $1, nullif($2, ''), nullif(r.also, '')::text[],
					nextval('rate_limit_audit_id')
			FROM (SELECT unnest($3) AS t, unnest($4) AS decision, unnest($5) AS reason, unnest($6) AS prefix,
				unnest($7) AS limit_name, unnest($8) AS key, unnest($9) AS user_id,
				unnest($10) AS tier, unnest($11) AS address, unnest($12) AS host, unnest($13) AS method,
					unnest($14) AS path, unnest($15) AS also, unnest($16) AS cost, unnest($17) AS n,
				unnest($18) AS quota, unnest($19) AS remaining, unnest($20) AS key_id, unnest($21) AS retry,
					unnest($22) AS duration, unnest($23) AS status, unnest($24) AS weight) r;
			RETURN;
		EXCEPTION WHEN check_violation THEN
			IF attempt = 2 THEN
				RAISE;
			END IF;
			PERFORM rate_limit_make_partition(d.day) FROM (
				SELECT DISTINCT ((timestamptz 'epoch' + t * interval '1 '
					'microsecond') AT TIME ZONE 'UTC')::date AS day FROM unnest($3) AS t ORDER BY day) d;
		END;
	END LOOP;
END $$;
COMMENT ON FUNCTION rate_limit_record_audit IS
	'Writes rows of rate_limit_audit, and makes the partitions that they need. Times are '
	'microseconds since 1970.';

CREATE OR REPLACE FUNCTION rate_limit_record_metrics(region text, times bigint[], prefixes text[],
	hosts text[], routes text[], alloweds bigint[], limiteds bigint[],
	blockeds bigint[], rejecteds bigint[], failures bigint[], shadows bigint[], costs bigint[],
		memories bigint[], latencies text[],
	leases bigint[], asked bigint[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	IF (SELECT min(n) FROM unnest($6 || $7 || $8 || $9 || $10 || $11 || $12 || $13 || $15 || $16) n) < 0
		OR array_to_string($14, '') LIKE '%-%' THEN
		RAISE EXCEPTION 'a number of the metrics is below 0: nothing is taken off'
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	FOR attempt IN 1..2 LOOP
		BEGIN
			INSERT INTO rate_limit_metrics AS m (granularity, time, prefix, host, route, region, requests,
				allowed, limited, blocked, rejected, errors, shadow, cost, from_memory,
				latency, updated_at, from_lease, from_database)
			SELECT 'minute', timestamptz 'epoch' + r.t * interval '1 minute', r.prefix, r.host, r.route, $1,
				r.allowed + r.limited + r.blocked + r.rejected + r.errors,
				r.allowed, r.limited, r.blocked, r.rejected, r.errors, r.shadow, r.cost, r.memory,
					r.latency::bigint[], now(), r.lease, r.asked
			FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
				AS r(t, prefix, host, route, allowed, limited, blocked, rejected, errors, shadow, cost,
					memory, latency, lease, asked)
			ORDER BY 2, 3, 4, 5
			ON CONFLICT (granularity, time, prefix, host, route, region) DO UPDATE
				SET requests = rate_limit_add(m.requests, excluded.requests),
				allowed = rate_limit_add(m.allowed, excluded.allowed),
				limited = rate_limit_add(m.limited, excluded.limited),
					blocked = rate_limit_add(m.blocked, excluded.blocked),
					rejected = rate_limit_add(m.rejected, excluded.rejected),
					errors = rate_limit_add(m.errors, excluded.errors),
				shadow = rate_limit_add(m.shadow, excluded.shadow),
					cost = rate_limit_add(m.cost, excluded.cost), from_memory = rate_limit_add(m.from_memory,
					excluded.from_memory),
				latency = rate_limit_add_buckets(m.latency, excluded.latency),
					updated_at = excluded.updated_at,
				from_lease = rate_limit_add(m.from_lease, excluded.from_lease),
					from_database = rate_limit_add(m.from_database, excluded.from_database);
			RETURN;
		EXCEPTION WHEN check_violation THEN
			IF attempt = 2 THEN
				RAISE;
			END IF;
			PERFORM rate_limit_make_partition_of('rate_limit_metrics', d.day) FROM (
				SELECT DISTINCT ((timestamptz 'epoch' + t * interval '1 minute') AT TIME ZONE 'UTC')::date
					AS day FROM unnest($2) AS t ORDER BY day) d;
		END;
	END LOOP;
END $$;
COMMENT ON FUNCTION rate_limit_record_metrics IS
	'Adds to the minutes of rate_limit_metrics, and makes the partitions that they need. Times are minutes '
	'since 1970. No minute is there twice.';

CREATE OR REPLACE FUNCTION rate_limit_record_usage(days bigint[], users text[], key_ids bigint[],
	requests bigint[], costs bigint[], refusals bigint[], lasts bigint[],
	hours bigint[], limiteds bigint[], denials bigint[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	IF (SELECT min(n) FROM unnest($4 || $5 || $6 || $9 || $10) n) < 0 THEN
		RAISE EXCEPTION 'a number of the usage is below 0: nothing is taken off'
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	INSERT INTO rate_limit_usage AS u (day, user_id, key_id, requests, cost, refused, last_request,
		limited, denied)
	SELECT date '1970-01-01' + r.day::int, r.user_id, r.key_id, sum(r.requests),
		rate_limit_add(sum(r.cost), 0), sum(r.refused),
		timestamptz 'epoch' + max(r.last) * interval '1 microsecond',
		sum(r.limited), sum(r.denied)
	FROM unnest($1, $2, $3, $4, $5, $6, $7, $9, $10) AS r(day, user_id, key_id, requests, cost, refused, last,
		limited, denied)
	GROUP BY 1, 2, 3
	ORDER BY 2, 1, 3
	ON CONFLICT (user_id, day, key_id) DO UPDATE SET requests = rate_limit_add(u.requests, excluded.requests),
		cost = rate_limit_add(u.cost, excluded.cost), refused = rate_limit_add(u.refused, excluded.refused),
		last_request = greatest(u.last_request, excluded.last_request),
			limited = rate_limit_add(u.limited, excluded.limited),
			denied = rate_limit_add(u.denied, excluded.denied);
	FOR attempt IN 1..2 LOOP
		BEGIN
			INSERT INTO rate_limit_usage_hours AS u (hour, user_id, key_id, requests, cost, refused,
				limited, denied)
			SELECT timestamptz 'epoch' + r.hour * interval '1 hour', r.user_id, r.key_id, r.requests, r.cost,
				r.refused, r.limited, r.denied
			FROM unnest($8, $2, $3, $4, $5, $6, $9, $10) AS r(hour, user_id, key_id, requests, cost, refused,
				limited, denied)
			ORDER BY 2, 1, 3
			ON CONFLICT (user_id, hour, key_id) DO UPDATE
				SET requests = rate_limit_add(u.requests, excluded.requests),
				cost = rate_limit_add(u.cost, excluded.cost),
				refused = rate_limit_add(u.refused, excluded.refused),
				limited = rate_limit_add(u.limited, excluded.limited),
					denied = rate_limit_add(u.denied, excluded.denied);
			RETURN;
		EXCEPTION WHEN check_violation THEN
			IF attempt = 2 THEN
				RAISE;
			END IF;
			PERFORM rate_limit_make_partition_of('rate_limit_usage_hours', d.day) FROM (
				SELECT DISTINCT ((timestamptz 'epoch' + h * interval '1 hour') AT TIME ZONE 'UTC')::date
					AS day FROM unnest($8) AS h ORDER BY day) d;
		END;
	END LOOP;
END $$;
COMMENT ON FUNCTION rate_limit_record_usage IS
	'Adds to the rows of rate_limit_usage and of rate_limit_usage_hours, and makes the partitions that they '
	'need. Days and hours are since 1970, times are microseconds since 1970. No hour of a user and a key is '
	'there twice.';

CREATE OR REPLACE FUNCTION rate_limit_retain(what text, keep text, set_by text) RETURNS text
	LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	kept CONSTANT interval := (SELECT r.keep FROM rate_limit_retention r WHERE r.what = $1 FOR UPDATE);
	most CONSTANT interval := '1000 years';
BEGIN
	-- Both intervals are subtracted from a time, because a comparison of intervals takes a month for 30 days.
	IF (now() - least($2::interval, most) <= now() - least(kept, most)) IS NOT TRUE
		AND NOT has_column_privilege(rate_limit_caller(), 'rate_limit_retention'::regclass, 'keep', 'UPDATE')
		THEN
		RETURN format('%s is kept for %s: the role %s may not shorten that; an administrator can, with '
			'UPDATE rate_limit_retention SET keep = %L WHERE what = %L',
			$1, coalesce(kept::text, 'ever'), rate_limit_caller(), $2, $1);
	END IF;
	INSERT INTO rate_limit_retention AS r (what, keep, set_by, set_at)
		VALUES ($1, $2::interval, nullif($3, ''), now())
	ON CONFLICT (what) DO UPDATE SET keep = excluded.keep, set_by = excluded.set_by, set_at = excluded.set_at
		WHERE r.keep <> excluded.keep;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_retain IS
	'Sets how long a part of the history is kept. keep is an interval. It returns why not, or NULL: only a '
	'role that may update rate_limit_retention can shorten a retention.';
