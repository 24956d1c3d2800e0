-- Functions that change rows of the policy: overrides, bans and names, and what the files of people and rules
-- need. Arguments have the names of columns. An argument that is NULL keeps the value of an existing row, and
-- gives a new row the default. reset names columns that get their defaults. Only rate_limit_set builds
-- statements from names.

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

-- TABLE rate_limit_overrides: Amounts that replace the amount of a limit for a tier, a user or an API key.
-- The override for the key applies, otherwise the override for the user, otherwise the override for the tier.
-- If several overrides of the same kind are valid, the one that became valid last applies.
--   id: The number of the override.
--   rule: The rule of the limit.
--   limit_name: The name of the limit.
--   tier: For all users of this tier.
--   user_id: For this user.
--   key_id: For this API key.
--   events: The amount in place of the limit's amount, in millionths for money. 0: nothing passes. NULL:
--     unlimited.
--   burst: The burst in place of the limit's burst. NULL: the limit's burst.
--   valid: When the override applies.
--   reason: A note. Proxies ignore it.
--   created_at: When the row was created.
--   created_by: The role that created the row.

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

-- TABLE rate_limit_bans: The banned networks, users and API keys. Deleting the row lifts the ban.
--   id: The number of the ban.
--   network: All addresses of this network.
--   user_id: This user, who need not be in rate_limit_users.
--   key_id: This API key.
--   until: When the ban ends. infinity: never.
--   reason: A note. Clients do not see it.
--   banned_at: When rate_limit_ban last set this ban.
--   banned_by: The role that last set this ban.

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

-- Deletes the overrides of a limit for a tier, a user or an API key, and returns whether there was one.
CREATE OR REPLACE FUNCTION rate_limit_delete_override(rule text, limit_name text, tier text DEFAULT NULL,
	user_id text DEFAULT NULL, key_id bigint DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_overrides o WHERE o.rule = $1 AND o.limit_name = $2
		AND (o.tier = $3 OR o.user_id = $4 OR o.key_id = $5);
	RETURN FOUND;
END $$;

-- Renames a rule or a tier in all rows that refer to it. kind is rule or tier. Returns whether it existed. A
-- renamed rule keeps its counters.
CREATE OR REPLACE FUNCTION rate_limit_rename(kind text, name text, new text) RETURNS boolean
	LANGUAGE plpgsql AS $$
DECLARE
	fault text;
	message text;
BEGIN
	IF kind = 'tier' THEN
		UPDATE rate_limit_tiers t SET tier = $3 WHERE t.tier = $2;
	ELSIF kind = 'rule' THEN
		UPDATE rate_limit_rules r SET name = $3 WHERE r.name = $2;
	ELSE
		RAISE EXCEPTION 'kind: %: must be rule or tier', to_json(kind)
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	RETURN FOUND;
EXCEPTION WHEN unique_violation THEN
	RAISE check_violation USING MESSAGE = format('%s: %s: must be a name that no %1$s has', $1, to_json($3));
WHEN integrity_constraint_violation THEN
	GET STACKED DIAGNOSTICS fault = CONSTRAINT_NAME, message = MESSAGE_TEXT;
	RAISE check_violation USING MESSAGE = rate_limit_fault(fault, message, NULL,
		jsonb_build_object('tier', $3, 'name', $3));
END $$;
