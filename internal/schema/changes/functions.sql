-- Functions that change one row of the policy. Their arguments have the names of columns. An argument that is
-- NULL keeps the value of an existing row, and gives a new row the default. reset names columns that get
-- their defaults. Only rate_limit_set, which the functions below call, builds statements from names.

-- Fails with a fault, unless it is NULL.
CREATE OR REPLACE FUNCTION rate_limit_refuse(fault text, code text DEFAULT 'check_violation') RETURNS void
	LANGUAGE plpgsql AS $$
BEGIN
	IF fault IS NOT NULL THEN
		RAISE EXCEPTION USING ERRCODE = code, MESSAGE = fault;
	END IF;
END $$;

-- Runs a statement that writes the rows of a list, and returns their number. The error names the row that the
-- server refuses, the field, its value and what it must be.
--
-- An element of list has the document of a row, and the name of the row for errors. If the server refuses the
-- statement, the function calls itself with each half of the list, until the error is about one row.
CREATE OR REPLACE FUNCTION rate_limit_write(statement text, list jsonb, section text DEFAULT NULL)
	RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	many CONSTANT int := jsonb_array_length(list);
	total bigint;
	fault text;
	message text;
	detail text;
	missing text;
BEGIN
	EXECUTE statement USING list;
	GET DIAGNOSTICS total = ROW_COUNT;
	RETURN total;
EXCEPTION WHEN integrity_constraint_violation OR invalid_parameter_value THEN
	GET STACKED DIAGNOSTICS fault = CONSTRAINT_NAME, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
		missing = COLUMN_NAME;
	IF many > 1 THEN
		PERFORM rate_limit_write(statement, (SELECT jsonb_agg(d.o) FROM jsonb_array_elements(list)
			WITH ORDINALITY AS d(o, place) WHERE (d.place > many / 2) = second), section)
			FROM unnest('{f,t}'::boolean[]) AS second;
	END IF;
	RAISE check_violation USING MESSAGE = concat(left(section, -1) || ' "' || (list -> 0 ->> 'name') || '": ',
		CASE WHEN missing = '' THEN rate_limit_fault(fault, message, detail, list -> 0 -> 'document')
		WHEN list -> 0 -> 'reset' ? missing THEN missing || ': must have a value, and has no default'
		ELSE missing || ': must be given for a new row' END);
END $$;

-- Creates or changes a row, which the columns keys identify. A field that is null is not set. A column in
-- reset gets its default. Returns created, changed, or kept: another session deletes the row.
CREATE OR REPLACE FUNCTION rate_limit_set(relation regclass, keys text[], fields jsonb, reset text[])
	RETURNS text
	LANGUAGE plpgsql AS $$
DECLARE
	inputs CONSTANT jsonb := jsonb_strip_nulls(fields);
	list CONSTANT jsonb := jsonb_build_array(jsonb_build_object('document', inputs, 'reset', reset));
	names CONSTANT text[] := ARRAY(SELECT jsonb_object_keys(inputs));
	resets CONSTANT text[] := ARRAY(SELECT n FROM unnest(reset) AS n WHERE NOT inputs ? n);
	others CONSTANT text[] := ARRAY(SELECT n FROM jsonb_object_keys(fields) AS n WHERE n <> ALL (keys));
	-- If there is no column to set, UPDATE sets a key to its own value, so that it still finds the row.
	sets text := format('%1$I = x.%1$I', keys[1]);
	same CONSTANT text := (SELECT string_agg(format(CASE WHEN inputs ? k THEN 'x.%1$I = t.%1$I'
		ELSE 'x.%I IS NULL' END, k), ' AND ') FROM unnest(keys) AS k);
	source CONSTANT text := format('jsonb_populate_record(NULL::%s, $1 -> 0 -> ''document'') t', relation);
BEGIN
	PERFORM rate_limit_refuse(CASE names WHEN '{}' THEN keys[1] || ': must be given' END);
	PERFORM rate_limit_refuse(format('reset: %s: must be one of %s', to_json(n),
		array_to_string(others, ', '))) FROM unnest(reset) AS n WHERE n <> ALL (others) OR n IS NULL;
	PERFORM rate_limit_refuse(format('%s: must not be both given and reset', n))
		FROM unnest(reset) AS n WHERE inputs ? n;
	SELECT coalesce(string_agg(format(CASE WHEN n = ANY (resets) THEN '%1$I = DEFAULT' ELSE '%1$I = '
		't.%1$I' END, n),
		', '), sets) INTO sets FROM unnest(others) AS n WHERE n = ANY (names || resets);
	FOR attempt IN 1..2 LOOP -- Another session may insert the row between the two statements.
		IF rate_limit_write(format('UPDATE %s x SET %s FROM %s WHERE %s', relation, sets, source, same),
			list) > 0 THEN
			RETURN 'changed';
		ELSIF rate_limit_write(format('INSERT INTO %s (%2$s) SELECT %2$s FROM %3$s ON CONFLICT (%4$s) '
			'DO NOTHING', relation, (SELECT string_agg(quote_ident(n), ', ') FROM unnest(names) AS n), source,
			(SELECT string_agg(quote_ident(k), ', ') FROM unnest(keys) AS k)), list) > 0 THEN
			RETURN 'created';
		END IF;
	END LOOP;
	RETURN 'kept'; -- Another session deletes the row that INSERT finds.
END $$;

-- Creates or changes a tier.
CREATE OR REPLACE FUNCTION rate_limit_tier(tier text, rank bigint DEFAULT NULL, comment text DEFAULT NULL,
	reset text[] DEFAULT NULL) RETURNS text LANGUAGE sql
	AS $$ SELECT rate_limit_set('rate_limit_tiers', '{tier}', to_jsonb(f), reset)
		FROM (SELECT tier, rank, comment) AS f $$;

-- Sets the overrides of a user or an API key, as rate_limit_user does with its argument overrides. Returns
-- made.
CREATE OR REPLACE FUNCTION rate_limit_set_overrides(made text, overrides text[], user_id text, key_id bigint
	DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	o record;
BEGIN
	FOR o IN SELECT f AS text, m[1] AS rule, m[2] AS name, m[3] AS burst, m[4] AS amount
		FROM unnest(overrides) AS f LEFT JOIN LATERAL regexp_match(f,
			'^([^/=]+)/([^=]+?)(?:[.]burst=(\d{0,18})|=([\d.]*|unlimited))$') AS m ON true
	LOOP
		IF o.rule IS NULL THEN
			RAISE EXCEPTION 'overrides: %: must be as in free/per_hour=5000, free/per_hour=unlimited or '
				'free/per_hour.burst=20', to_json(o.text) USING ERRCODE = 'invalid_parameter_value';
		ELSIF o.amount IS DISTINCT FROM '' THEN
			PERFORM rate_limit_override(o.rule, o.name, o.amount, NULL, $3, $4, nullif(o.burst, '')::bigint,
				reset => CASE o.burst WHEN '' THEN '{burst}' END::text[]);
		ELSIF NOT rate_limit_delete_override(o.rule, o.name, NULL, $3, $4)
			AND NOT EXISTS (SELECT FROM rate_limit_rule_limits l WHERE (l.rule, l.name) = (o.rule, o.name))
		THEN
			RAISE EXCEPTION '%/%: no such limit', o.rule, o.name USING ERRCODE = 'no_data_found';
		END IF;
	END LOOP;
	RETURN made;
END $$;

-- Creates or changes a user. A new user needs a tier. overrides are as in free/per_hour=5000,
-- free/per_hour=unlimited and free/per_hour.burst=20. Without a value, as in free/per_hour=, the override is
-- deleted.
CREATE OR REPLACE FUNCTION rate_limit_user(user_id text, tier text DEFAULT NULL,
	tier_until timestamptz DEFAULT NULL, period_start date DEFAULT NULL, time_zone text DEFAULT NULL,
	comment text DEFAULT NULL, overrides text[] DEFAULT NULL, reset text[] DEFAULT NULL,
	parent text DEFAULT NULL) RETURNS text
	LANGUAGE sql AS $$ SELECT rate_limit_set_overrides(rate_limit_set('rate_limit_users', '{user_id}',
			to_jsonb(f), reset), overrides, user_id)
		FROM (SELECT user_id, tier, tier_until, period_start, time_zone, comment, parent) AS f $$;

-- Changes an API key. overrides are as in rate_limit_user. reset => '{revoked_at}' restores a revoked key.
--
-- A constraint allows revoked_by only with revoked_at, so a reset of revoked_at clears both columns.
CREATE OR REPLACE FUNCTION rate_limit_key(id bigint, tier text DEFAULT NULL, name text DEFAULT NULL,
	expires_at timestamptz DEFAULT NULL, overrides text[] DEFAULT NULL, reset text[] DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM rate_limit_api_keys k WHERE k.id = $1 FOR UPDATE;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'key: %: must be the id of an API key', $1 USING ERRCODE = 'no_data_found';
	END IF;
	RETURN rate_limit_set_overrides(rate_limit_set('rate_limit_api_keys', '{id}', jsonb_build_object('id', $1,
		'tier', $2, 'name', $3, 'expires_at', $4, 'revoked_at', NULL, 'revoked_by', NULL),
		CASE WHEN 'revoked_at' = ANY ($6) THEN $6 || '{revoked_by}' ELSE $6 END), $5, NULL, $1);
END $$;

-- Creates or changes a limit of a rule, with any window. The amount is as in 50/10s, 5000 tokens/1m, 50
-- money/1mo calendar, unlimited/1h, 10000/1mo calendar Europe/Berlin or 5/in_flight. It sets the unit, the
-- window, the calendar and the time zone, too.
CREATE OR REPLACE FUNCTION rate_limit_limit(rule text, name text, amount text DEFAULT NULL,
	algorithm text DEFAULT NULL, burst bigint DEFAULT NULL, durable boolean DEFAULT NULL,
	on_exceed text DEFAULT NULL, output bigint DEFAULT NULL, fields boolean DEFAULT NULL,
	reset text[] DEFAULT NULL, notify bigint[] DEFAULT NULL, batches text DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	-- the events, the unit, in_flight, the calendar, the time zone, the window
	part CONSTANT text[] := regexp_match($3, '^\s*(unlimited|\d{1,18}|\d+[.]\d+)(?:\s+([a-z_]+))?\s*/\s*'
		|| '(?:(in_flight)|1?(day|d|week|w|month|mo|year|y) calendar(?: (\S+))?'
		|| '|((?:\d{0,8}(?:w|d|h|m|s|ms|us))+))\s*$');
	old rate_limit_rule_limits;
	law text;
	kind text;
BEGIN
	IF $3 IS NOT NULL AND part IS NULL THEN
		RAISE EXCEPTION 'amount of %/%: %: must be %', $1, $2, to_json($3),
			CASE WHEN $3 ~ '/\s*\d*\s*(mo|months?|y|years?)\s*$'
				THEN 'with calendar, as in 5 money/1mo calendar: months and years differ in length'
			ELSE 'EVENTS/WINDOW, as in 100/10s, 5000 tokens/1m, 0.50 money/24h, unlimited/1h, '
				'10000/1mo calendar Europe/Berlin or 5/in_flight' END
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	SELECT l.* INTO old FROM rate_limit_rule_limits l WHERE (l.rule, l.name) = ($1, $2) FOR UPDATE;
	kind := coalesce(part[2], CASE WHEN part[1] <> 'unlimited' THEN 'requests' END, old.unit);
	-- A new limit gets the algorithm of the rule's limits with a window, if they all have the same algorithm.
	SELECT CASE WHEN part[3] IS NOT NULL THEN 'in_flight' WHEN part[4] IS NOT NULL THEN 'fixed_window'
		ELSE coalesce($4, CASE WHEN old.per IS NOT NULL THEN old.algorithm END, CASE
			WHEN part IS NOT NULL THEN
			coalesce((SELECT min(l.algorithm) FROM rate_limit_rule_limits l WHERE l.rule = $1
				AND l.per IS NOT NULL
				HAVING count(DISTINCT l.algorithm) = 1), 'sliding_window') END) END INTO law;
	RETURN rate_limit_set('rate_limit_rule_limits', '{rule,name}', jsonb_build_object('rule', $1, 'name', $2,
		'events', CASE WHEN part[1] <> 'unlimited'
			THEN rate_limit_units(part[1], kind) END,
		'calendar', CASE left(part[4], 1) WHEN 'd' THEN 'day'
			WHEN 'w' THEN 'week' WHEN 'm' THEN 'month' WHEN 'y' THEN 'year' END, 'time_zone', part[5],
		'per', regexp_replace(part[6], '^(?=[a-z])', '1')::interval, 'algorithm', law, 'burst', $5,
		'durable', $6, 'on_exceed', $7, 'unit', kind, 'output', $8, 'fields', $9, 'notify', $11,
		'batches', $12),
		$10 || CASE WHEN part IS NOT NULL
			THEN ARRAY(SELECT f FROM unnest(ARRAY['events', 'calendar', 'time_zone',
			'per', 'burst', 'output', 'batches'],
				ARRAY[nullif(part[1], 'unlimited'), part[4], part[5], part[6],
				coalesce($5::text, part[6]), coalesce($8::text, nullif(kind, 'requests')),
				coalesce($12, nullif(kind, 'requests'))]) AS n(f, v)
				WHERE v IS NULL
					AND f <> ALL (coalesce($10, '{}'))) END);
END $$;

-- Sets another amount of a limit for a tier, a user or an API key, for ever or until a time. The amount is a
-- number, or unlimited. A new override without an amount gets the amount of the limit, and keeps that amount
-- when the rule changes.
--
-- An override with an end starts now, and so precedes a permanent override, which applies again after the
-- end.
CREATE OR REPLACE FUNCTION rate_limit_override(rule text, limit_name text, amount text DEFAULT NULL,
	tier text DEFAULT NULL, user_id text DEFAULT NULL, key_id bigint DEFAULT NULL, burst bigint DEFAULT NULL,
	until timestamptz DEFAULT NULL, reason text DEFAULT NULL, reset text[] DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	own rate_limit_rule_limits;
	old rate_limit_overrides;
	span tstzrange := '(,)';
BEGIN
	IF $3 !~ '^(unlimited|\d{1,18}|\d+[.]\d+)$' THEN
		RAISE EXCEPTION 'amount of %/%: %: must be a number, or unlimited', $1, $2, to_json($3)
			USING ERRCODE = 'invalid_parameter_value';
	ELSIF $8 <= now() THEN
		RAISE EXCEPTION 'until: %: must be in the future of the server''s clock', to_json($8)
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	SELECT l.* INTO own FROM rate_limit_rule_limits l WHERE (l.rule, l.name) = ($1, $2) FOR SHARE;
	IF NOT FOUND THEN
		RAISE EXCEPTION '%/%: no such %', $1, $2, (SELECT coalesce('limit: must be one of ' || string_agg(
			l.rule || '/' || l.name, ', ' ORDER BY l.rule, l.name), 'rule, or it has no limit')
			FROM rate_limit_rule_limits l WHERE l.rule = $1) USING ERRCODE = 'no_data_found';
	END IF;
	SELECT o.* INTO old FROM rate_limit_overrides o WHERE (o.rule, o.limit_name) = ($1, $2)
		AND (o.tier, o.user_id, o.key_id) IS NOT DISTINCT FROM ($4, $5, $6)
		AND CASE WHEN $8 IS NULL THEN o.valid = '(,)' ELSE o.valid @> now() AND NOT upper_inf(o.valid) END
		ORDER BY lower(o.valid) DESC NULLS LAST LIMIT 1 FOR UPDATE;
	IF $8 IS NOT NULL THEN
		span := tstzrange(CASE WHEN old.id IS NULL THEN now() ELSE lower(old.valid) END, $8);
		UPDATE rate_limit_overrides o SET valid = span WHERE o.id = old.id;
	END IF;
	RETURN rate_limit_set('rate_limit_overrides', '{rule,limit_name,tier,user_id,key_id,valid}',
		jsonb_build_object('rule', $1, 'limit_name', $2, 'tier', $4, 'user_id', $5, 'key_id', $6,
			'valid', span,
			'events', CASE WHEN $3 IS NULL AND old.id IS NULL THEN own.events
			WHEN $3 <> 'unlimited' THEN rate_limit_units($3, own.unit) END,
			'burst', $7, 'reason', $9),
		CASE WHEN $3 = 'unlimited' THEN '{events}' ELSE '{}' END::text[] || $10);
END $$;

-- Bans a network, a user or an API key, for ever or until a time. An existing ban gets this end and this
-- reason.
CREATE OR REPLACE FUNCTION rate_limit_ban(network cidr DEFAULT NULL, user_id text DEFAULT NULL,
	key_id bigint DEFAULT NULL, until timestamptz DEFAULT NULL, reason text DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	IF num_nonnulls($1, $2, $3) <> 1 THEN
		RAISE invalid_parameter_value
			USING MESSAGE = format('network, user_id, key_id: exactly one of them must be given, not %s',
				num_nonnulls($1, $2, $3));
	ELSIF $4 <= now() THEN
		RAISE EXCEPTION 'until: %: must be in the future of the server''s clock', to_json($4)
			USING ERRCODE = 'invalid_parameter_value';
	ELSIF family($1) = 6 AND masklen($1) = 128 THEN
		RAISE WARNING '% is one of 2^64 addresses of its client: ban % to ban the client', host($1),
			network(set_masklen($1::inet, 64)) USING ERRCODE = 'RL003';
	END IF;
	RETURN rate_limit_set('rate_limit_bans', ARRAY[CASE WHEN $1 IS NOT NULL THEN 'network' WHEN $2 IS NOT NULL
		THEN 'user_id' ELSE 'key_id' END], jsonb_build_object('network', $1, 'user_id', $2, 'key_id', $3,
			'until', $4, 'reason', $5, 'banned_at', NULL, 'banned_by', NULL),
		array_remove(ARRAY['banned_at', 'banned_by', CASE WHEN $4 IS NULL THEN 'until' END,
			CASE WHEN $5 IS NULL THEN 'reason' END], NULL));
END $$;

-- An IPv4 address or network in IPv6 form, such as ::ffff:192.0.2.1, as IPv4, and any other address
-- unchanged. Proxies treat both forms as equal.
CREATE OR REPLACE FUNCTION rate_limit_network(network inet) RETURNS inet LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN network <<= '::ffff:0.0.0.0/96'
	THEN set_masklen(inet '0.0.0.0' + (network - inet '::ffff:0.0.0.0'), masklen(network) - 96)
	ELSE network END;

-- Lifts a ban, and returns whether there was one. An IPv4 network is equal to its IPv6 form.
CREATE OR REPLACE FUNCTION rate_limit_unban(network inet DEFAULT NULL, user_id text DEFAULT NULL,
	key_id bigint DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_bans b WHERE b.user_id = $2 OR b.key_id = $3
		OR rate_limit_network(b.network) = rate_limit_network($1);
	RETURN FOUND;
END $$;

-- Deletes a rule with its limits and overrides, and returns whether it existed.
CREATE OR REPLACE FUNCTION rate_limit_delete_rule(name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_rules r WHERE r.name = $1;
	RETURN FOUND;
END $$;

-- Deletes a limit with its overrides, and returns whether it existed. A rule with the action limit must keep
-- at least one limit.
CREATE OR REPLACE FUNCTION rate_limit_delete_limit(rule text, name text) RETURNS boolean
	LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_rule_limits l WHERE l.rule = $1 AND l.name = $2;
	RETURN FOUND;
END $$;

-- Fails if a user is the parent of others.
CREATE OR REPLACE FUNCTION rate_limit_refuse_parent(user_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM rate_limit_refuse(format('user: %s: must not be the parent of other users: give these %s another '
		'parent first', to_json($1), count(*)), 'foreign_key_violation')
		FROM rate_limit_users u WHERE u.parent = $1 HAVING count(*) > 0;
END $$;

-- Deletes a user with its API keys, their bans, and its overrides, and returns whether it existed. It fails
-- if the user is the parent of others.
CREATE OR REPLACE FUNCTION rate_limit_delete_user(user_id text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM rate_limit_refuse_parent($1);
	DELETE FROM rate_limit_users u WHERE u.user_id = $1;
	RETURN FOUND;
END $$;

-- Deletes the overrides of a limit for a tier, a user or an API key, and returns whether there was one.
CREATE OR REPLACE FUNCTION rate_limit_delete_override(rule text, limit_name text, tier text DEFAULT NULL,
	user_id text DEFAULT NULL, key_id bigint DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_overrides o WHERE o.rule = $1 AND o.limit_name = $2
		AND (o.tier = $3 OR o.user_id = $4 OR o.key_id = $5);
	RETURN FOUND;
END $$;
