-- The functions with which a proxy writes the history. A batch is one transaction: first
-- rate_limit_begin_batch, then the functions for the audit log and the metrics. Each function writes its rows
-- in a fixed order, so that two proxies do not wait for each other in a circle.
--
-- Drivers cannot send NULL in arrays, so an empty text and a number below 0 represent NULL. The arrays are
-- unnested in a SELECT list, where they advance together, and not in FROM, where Postgres would first store
-- all elements.

-- The first statement of a transaction that writes a batch. It fails with unique_violation if this batch or a
-- later batch is already written, so a writer that got no answer can send the batch again. The transaction
-- waits for a lock for at most 1 s. written and dropped are totals.
CREATE OR REPLACE FUNCTION rate_limit_begin_batch(writer text, node text, region text, batch bigint,
	written bigint, dropped bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
BEGIN
	-- Decisions may wait for the same connection, so the batch must not wait long for a row that another
	-- session has locked.
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

-- rate_limit_record_audit and rate_limit_record_metrics are created from the columns of their tables. Each
-- column that a proxy writes is an argument with the same name, an array with an element for each row. A
-- proxy passes arguments by name, so their positions have no meaning. A test compares the proxy's list of
-- columns with the arguments.
DO $do$
DECLARE
	definition text;
BEGIN
	FOR definition IN
		WITH columns AS (
			SELECT a.attrelid, a.attname AS name, a.attnum AS n, a.attnotnull AS needed,
				format_type(a.atttypid, NULL) AS type, a.atttypid IN ('int8'::regtype, 'int4'::regtype,
					'timestamptz'::regtype) AS number
			FROM pg_attribute a
			WHERE a.attrelid IN ('rate_limit_audit'::regclass, 'rate_limit_metrics'::regclass)
				AND a.attnum > 0 AND NOT a.attisdropped
				AND a.attname NOT IN ('node', 'region', 'id', 'granularity')
		), lists AS (
			SELECT c.attrelid = 'rate_limit_audit'::regclass AS of_audit,
				string_agg(quote_ident(c.name), ', ' ORDER BY c.n) AS names,
				string_agg(format('%I %s[]', c.name, CASE WHEN c.number THEN 'bigint' ELSE 'text' END), ', '
					ORDER BY c.n) AS arguments,
				string_agg(format('unnest(%1$I) AS %1$I', c.name), ', ' ORDER BY c.n) AS elements,
				string_agg(format(CASE
						WHEN c.name = 'time' AND c.attrelid = 'rate_limit_metrics'::regclass
							THEN 'date_trunc(g.granularity, timestamptz ''epoch'' + '
								'r.time * interval ''1 us'', ''UTC'')'
						WHEN c.type LIKE 'timestamp%'
							THEN 'timestamptz ''epoch'' + r.%1$I * interval ''1 us'''
						WHEN c.number AND NOT c.needed THEN 'CASE WHEN r.%1$I >= 0 THEN r.%1$I END'
						WHEN c.needed THEN 'r.%1$I::%2$s'
						ELSE 'nullif(r.%1$I, '''')::%2$s' END, c.name, c.type), ', ' ORDER BY c.n) AS values,
				-- The columns of metrics after the endpoint are added up.
				string_agg(quote_ident(c.name), ' || ' ORDER BY c.n) FILTER (WHERE c.number) AS numbers,
				string_agg(format('%1$I = ' || CASE c.type
						WHEN 'bigint' THEN 'rate_limit_add'
						WHEN 'bigint[]' THEN 'rate_limit_add_buckets'
						ELSE 'greatest' END || '(m.%1$I, excluded.%1$I)', c.name), ', '
					ORDER BY c.n) FILTER (WHERE c.n > last.n) AS additions
			FROM columns c, (SELECT n FROM columns WHERE name = 'endpoint') AS last GROUP BY c.attrelid
		)
		SELECT format($f$
CREATE OR REPLACE FUNCTION rate_limit_record_%s(region text, %s) RETURNS void
	LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
BEGIN
	%s
	FOR attempt IN 1..2 LOOP
		BEGIN
			%s;
			RETURN;
		EXCEPTION WHEN check_violation THEN
			IF attempt = 2 THEN
				RAISE;
			END IF;
			PERFORM rate_limit_make_partition(d.day, p) FROM (SELECT DISTINCT ((timestamptz 'epoch'
				+ t * interval '1 us') AT TIME ZONE 'UTC')::date AS day FROM unnest("time") AS t
				ORDER BY day) d, unnest(%L::text[]) AS p;
		END;
	END LOOP;
END $$$f$, CASE WHEN of_audit THEN 'audit' ELSE 'metrics' END,
			concat(CASE WHEN of_audit THEN 'node text, ' END, arguments),
			CASE WHEN NOT of_audit THEN format($f$IF (SELECT min(n) FROM unnest(%s) n) < 0
		OR array_to_string(durations, '') LIKE '%%-%%' THEN
		RAISE invalid_parameter_value
			USING MESSAGE = 'a number of the metrics is below 0: metrics only grow';
	END IF;$f$, numbers) END,
			CASE WHEN of_audit THEN format($f$INSERT INTO rate_limit_audit (node, region, id, %s)
			SELECT $2, nullif($1, ''), nextval('rate_limit_audit_id'), %s
			FROM (SELECT %s) r$f$, names, values, elements)
			ELSE format($f$INSERT INTO rate_limit_metrics AS m (region, granularity, %s)
			SELECT $1, g.granularity, %s
			FROM (SELECT %s) r, unnest('{minute,hour,day}'::text[]) AS g(granularity)
			ORDER BY 2, r.user_id, r.key_id, r.prefix, r.limit_name, r.unit, r.endpoint
			ON CONFLICT (user_id, time, key_id, prefix, limit_name, unit, endpoint, region,
				granularity)
				DO UPDATE SET %s$f$, names, values, elements, additions) END,
			CASE WHEN of_audit THEN '{rate_limit_audit}'
				ELSE '{rate_limit_metrics_minute,rate_limit_metrics_hour}' END)
		FROM lists
	LOOP
		EXECUTE definition;
	END LOOP;
END $do$;

-- FUNCTION rate_limit_record_audit: Writes rows of rate_limit_audit, and creates the partitions that they
-- need. Times are microseconds since 1970. An empty text and a number below 0 represent NULL.

-- FUNCTION rate_limit_record_metrics: Adds to the minutes, hours and days of rate_limit_metrics, and creates
-- the partitions that they need. All rows must be of one minute, and no two rows may be of the same user, API
-- key, limit and endpoint. Times are microseconds since 1970.

-- Sets the retention of a part of the history (what) to an interval (keep). Returns NULL, or the reason for a
-- refusal: only a role that may update rate_limit_retention can shorten a retention.
CREATE OR REPLACE FUNCTION rate_limit_retain(what text, keep text, set_by text) RETURNS text
	LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
	kept CONSTANT interval := (SELECT r.keep FROM rate_limit_retention r WHERE r.what = $1 FOR UPDATE);
	most CONSTANT interval := '1000 years';
BEGIN
	-- Times are compared, because a comparison of intervals counts a month as 30 days.
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
EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
	IF $1 IN ('audit', 'metrics_minute', 'metrics_hour', 'metrics_day') THEN
		RAISE EXCEPTION 'keep: %: must be 1 day or more, as in 90 days', to_json($2)
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	RAISE EXCEPTION 'what: %: must be audit, metrics_minute, metrics_hour or metrics_day', to_json($1)
		USING ERRCODE = 'invalid_parameter_value';
END $$;
