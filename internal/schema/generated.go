// Code generated from the .sql files by go generate. DO NOT EDIT.
//
// Comments are in the .sql files alone.

package schema

const describe = `
CREATE OR REPLACE PROCEDURE rate_limit_describe(relation text, texts text) LANGUAGE plpgsql AS $$
DECLARE
	line record;
BEGIN
	FOR line IN SELECT t.text, t.place FROM regexp_split_to_table( regexp_replace(btrim(texts, E'\n'), '\n\t+', ' ', 'g'), '\n') WITH ORDINALITY AS t(text, place)
	LOOP
		IF line.place = 1 THEN
			EXECUTE format('COMMENT ON %s %I IS %L', (SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END FROM pg_class c WHERE c.oid = relation::regclass), relation, line.text);
		ELSE
			EXECUTE format('COMMENT ON COLUMN %I.%I IS %L', relation, split_part(line.text, ': ', 1), substring(line.text FROM ': (.*)'));
		END IF;
	END LOOP;
END $$;
`

const end = `
DO $$
DECLARE
	function record;
	setting text;
BEGIN
	FOR function IN SELECT p.oid::regprocedure AS signature, p.proname AS name, p.prosecdef OR p.prorettype = 'trigger'::regtype AS fixed FROM pg_proc p
		WHERE p.pronamespace = to_regnamespace(quote_ident(current_schema())) AND p.proname LIKE 'rate\_limit\_%' AND p.proname NOT IN ('rate_limit_counters', 'rate_limit_override_of', 'rate_limit_lineage')
			AND p.provolatile <> 'i' AND p.prosqlbody IS NULL AND pg_has_role(p.proowner, 'USAGE')
			AND NOT EXISTS (SELECT FROM unnest(p.proconfig) AS s WHERE s LIKE 'search_path=%')
	LOOP
		EXECUTE format('ALTER ROUTINE %s SET search_path = pg_catalog, %I, pg_temp', function.signature, current_schema());
		FOREACH setting IN ARRAY CASE WHEN function.fixed THEN ARRAY['TimeZone = ''UTC''', 'DateStyle = ''ISO, YMD''', 'IntervalStyle = ''postgres''', 'bytea_output = ''hex''',
			'extra_float_digits = 1', 'array_nulls = on', 'standard_conforming_strings = on',
			'quote_all_identifiers = off', 'lc_numeric = ''C''', 'lc_time = ''C''', 'lc_monetary = ''C''']
			ELSE '{}' END LOOP
			EXECUTE format('ALTER ROUTINE %s SET %s', function.signature, setting);
		END LOOP;
		IF function.name NOT IN ('rate_limit_behind', 'rate_limit_has_applied', 'rate_limit_read_report', 'rate_limit_reported_at', 'rate_limit_counted_prefix', 'rate_limit_unknown_zones',
			'rate_limit_unlimited', 'rate_limit_exposed', 'rate_limit_key_name') THEN
			EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', function.signature);
		END IF;
	END LOOP;
END $$;
DO $$
DECLARE
	described record;
BEGIN
	FOR described IN SELECT u.view_name, u.column_name, min(col_description(t.attrelid, t.attnum)) AS text FROM information_schema.view_column_usage u
		JOIN pg_attribute t ON t.attrelid = to_regclass(quote_ident(u.table_name)) AND t.attname = u.column_name
		JOIN pg_attribute a ON a.attrelid = to_regclass(quote_ident(u.view_name)) AND a.attname = u.column_name
		WHERE u.view_schema = current_schema() AND u.view_name LIKE 'rate\_limit\_%' AND col_description(a.attrelid, a.attnum) IS NULL GROUP BY 1, 2
	LOOP
		EXECUTE format('COMMENT ON COLUMN %I.%I IS %L', described.view_name, described.column_name, described.text);
	END LOOP;
END $$;
DO $$
DECLARE
	it record;
BEGIN
	FOR it IN SELECT DISTINCT a.grantee FROM pg_class c, aclexplode(c.relacl) AS a WHERE c.oid = 'rate_limit_grants'::regclass AND a.grantee <> c.relowner
	LOOP
		EXECUTE format('REVOKE ALL ON rate_limit_grants FROM %s', CASE it.grantee WHEN 0 THEN 'PUBLIC' ELSE it.grantee::regrole::text END);
	END LOOP;
	PERFORM rate_limit_grant(g.role, g.kind) FROM rate_limit_grants g JOIN pg_roles r ON r.rolname = g.role;
END $$;
DROP PROCEDURE rate_limit_describe;
`

const grants = `
CREATE TABLE IF NOT EXISTS rate_limit_grants ( role text, kind text, PRIMARY KEY (role, kind) );
CALL rate_limit_describe('rate_limit_grants', $$
The roles that have rights by rate_limit_grant. Each migration grants these rights again.
role: The role.
kind: proxy, administrator or reader.
$$);
CREATE OR REPLACE FUNCTION rate_limit_rights(kind text) RETURNS TABLE (privileges text, object text)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	schemas oid[] := ARRAY(SELECT relnamespace FROM pg_class WHERE oid = 'rate_limit_grants'::regclass);
BEGIN
	IF to_regprocedure('rate_limit_shards()') IS NOT NULL THEN
		schemas := schemas || ARRAY(SELECT n.oid FROM rate_limit_shards() s JOIN pg_namespace n ON n.nspname = s.schema);
	END IF;
	RETURN QUERY SELECT r.privileges, o.object FROM (VALUES ('proxy', '(shard/)?(ephemeral|durable|processes)|nodes', 'SELECT, INSERT, UPDATE, DELETE'), ('proxy', '(shard/)?ledger', 'SELECT, INSERT'),
		('proxy', 'secrets|tiers|users|api_keys|rules|rule_limits|overrides|bans|prices', 'SELECT'),
		('proxy', 'changes', 'SELECT (seq, xid, kind, ref)'),
		('proxy', '(begin_batch|drop_expired|forget|ledger_upkeep|notice|notice_upkeep|record_audit|record_metrics|retain|upkeep)/owner', 'EXECUTE'),
		('reader', '(?!secrets)(shard/)?[a-z_]+', 'SELECT'),
		('reader', '.*/caller', 'EXECUTE'),
		('administrator', 'tiers|users|api_keys|rules|rule_limits|overrides|bans|prices', 'INSERT, UPDATE, DELETE'),
		('administrator', 'ephemeral|durable', 'DELETE, UPDATE (slot)'),
		('administrator', 'shard/(ephemeral|durable)', 'DELETE, UPDATE'),
		('administrator', 'retention', 'UPDATE (keep, set_by, set_at)'),
		('administrator', 'ledger_retention', 'UPDATE (keep)'),
		('administrator', 'notices', 'UPDATE (taken_at)'),
		('administrator', '(drop_expired|ledger_upkeep|upkeep)/owner', 'EXECUTE')
	) AS r(kind, names, privileges) JOIN ( SELECT CASE c.relnamespace WHEN schemas[1] THEN '' ELSE 'shard/' END || substr(c.relname, 12) AS name, c.oid::regclass::text AS object
		FROM pg_class c WHERE c.relnamespace = ANY (schemas) AND c.relname LIKE 'rate\_limit\_%' AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition AND pg_has_role(c.relowner, 'USAGE')
		UNION ALL
		SELECT substr(p.proname, 12) || CASE WHEN p.prosecdef THEN '/owner' ELSE '/caller' END, 'FUNCTION ' || p.oid::regprocedure
		FROM pg_proc p WHERE p.pronamespace = schemas[1] AND p.proname LIKE 'rate\_limit\_%' AND p.prokind = 'f' AND pg_has_role(p.proowner, 'USAGE')
			AND NOT has_function_privilege('public', p.oid, 'EXECUTE')
	) AS o ON o.name ~ format('^(%s)$', r.names)
	WHERE r.kind = $1 OR r.kind = 'reader' AND $1 = 'administrator'
	UNION ALL
	SELECT 'USAGE', format('SCHEMA %I', n.nspname) FROM pg_namespace n
	WHERE n.oid = ANY (schemas) AND pg_has_role(n.nspowner, 'USAGE') AND NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v')
			AND c.relname NOT LIKE 'rate\_limit\_%');
END $$;
COMMENT ON FUNCTION rate_limit_rights IS 'The rights of a kind of role on tables, views and functions, and USAGE on a schema of their own.';
CREATE OR REPLACE FUNCTION rate_limit_grant(role text, kind text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	it record;
BEGIN
	IF ($2 IN ('proxy', 'administrator', 'reader')) IS NOT TRUE THEN
		RAISE EXCEPTION 'kind: %: must be proxy, administrator or reader', to_json($2) USING ERRCODE = 'invalid_parameter_value';
	ELSIF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = $1) THEN
		RAISE EXCEPTION 'role: %: there is no such role', to_json($1) USING ERRCODE = 'undefined_object';
	END IF;
	FOR it IN SELECT * FROM rate_limit_rights($2) LOOP
		EXECUTE format('GRANT %s ON %s TO %I', it.privileges, it.object, $1);
	END LOOP;
	INSERT INTO rate_limit_grants VALUES ($1, $2) ON CONFLICT DO NOTHING;
END $$;
COMMENT ON FUNCTION rate_limit_grant IS 'Grants a role the rights of a proxy, of an administrator, who changes the policy, or of a reader, who '
	'reads all but secrets, and records that. Each migration grants them again. For the owner of the tables.';
CREATE OR REPLACE FUNCTION rate_limit_revoke(role text, kind text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	it record;
BEGIN
	DELETE FROM rate_limit_grants g WHERE (g.role, g.kind) = ($1, $2);
	IF NOT FOUND THEN
		RAISE EXCEPTION 'role: %: rate_limit_grant has given it no rights of the kind %', to_json($1), to_json($2) USING ERRCODE = 'undefined_object';
	END IF;
	FOR it IN SELECT t.* FROM rate_limit_rights($2) t, pg_roles r WHERE r.rolname = $1 LOOP
		EXECUTE format('REVOKE %s ON %s FROM %I', it.privileges, it.object, $1);
	END LOOP;
	PERFORM rate_limit_grant(g.role, g.kind) FROM rate_limit_grants g JOIN pg_roles r ON r.rolname = g.role WHERE g.role = $1;
END $$;
COMMENT ON FUNCTION rate_limit_revoke IS 'Takes back what rate_limit_grant gave. Rights that another kind of the role has too stay.';
`

const keyName = `
CREATE OR REPLACE FUNCTION rate_limit_key_name(key_id bigint, rule text DEFAULT NULL, key text DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF has_table_privilege(to_regclass('rate_limit_api_keys'), 'SELECT') IS NOT TRUE OR has_table_privilege(to_regclass('rate_limit_rules'), 'SELECT') IS NOT TRUE THEN
		RETURN NULL;
	END IF;
	IF $1 IS NULL THEN
		$1 := (SELECT d.part::bigint FROM rate_limit_rules r, rate_limit_counted(r.count_by, $3) AS d WHERE r.name = $2 AND d.dimension = 'key' AND d.part ~ '^[1-9][0-9]{0,17}$');
	END IF;
	RETURN (SELECT concat_ws(' ', k.name, 'of', k.user_id) FROM rate_limit_api_keys k WHERE k.id = $1);
END $$;
COMMENT ON FUNCTION rate_limit_key_name IS 'The name and the user of an API key, as in laptop of ann. Without key_id, it is the API key of a '
	'counter, if the rule counts by API key. NULL: there is none, or the role may not read the policy.';
`

const countersForget = `
CREATE OR REPLACE FUNCTION rate_limit_forget_person(user_id text DEFAULT NULL, key_id bigint DEFAULT NULL, key text DEFAULT NULL, address inet DEFAULT NULL, account boolean DEFAULT false, dry_run boolean DEFAULT false)
RETURNS TABLE (name text, deleted bigint, kept bigint) LANGUAGE plpgsql AS $$
DECLARE
	network CONSTANT cidr := network(set_masklen($4, CASE family($4) WHEN 6 THEN 64 ELSE 32 END));
	client CONSTANT text := CASE family($4) WHEN 6 THEN network::text ELSE host($4) END;
	users CONSTANT text[] := array_remove(ARRAY[$1], NULL);
	counted CONSTANT text[] := array_remove(ARRAY[rate_limit_counted_user($1)], NULL);
	keys bigint[] := array_remove(ARRAY[$2], NULL);
	texts text[] := array_remove(ARRAY[$1, rate_limit_counter_key($1), rate_limit_counter_key(counted[1]), $3, host($4), client], NULL);
	ids text[]; -- of API keys, as keys of counters contain them
	digests text[];
	refs text[]; -- values of rate_limit_changes.ref
	condition text;
	counts record;
	rules text := '(SELECT NULL::text AS counts, NULL::text[] AS count_by WHERE false)';
	prefixes text[];
	counters text[];
BEGIN
	IF num_nonnulls($1, $2, $3, $4) <> 1 THEN
		RAISE invalid_parameter_value USING MESSAGE = 'user_id, key_id, key, address: exactly one of them must be given';
	END IF;
	IF to_regclass('rate_limit_users') IS NOT NULL THEN
		PERFORM rate_limit_refuse_parent($1);
	END IF;
	texts := ARRAY(SELECT s FROM unnest(texts) AS t, unnest(rate_limit_stored_keys(t)) AS s) || array_remove(ARRAY['ip:' || client, '%preflight:' || client], NULL);
	IF to_regclass('rate_limit_api_keys') IS NOT NULL THEN
		rules := '(SELECT coalesce(to_jsonb(r) ->> ''counted_as'', name) AS counts, count_by FROM rate_limit_rules r)';
		SELECT keys || array_agg(k.id), array_agg(k.counted_as::text), array_agg(encode(k.digest, 'hex')) INTO keys, ids, digests FROM rate_limit_api_keys k
			WHERE k.user_id = $1 OR k.id = $2 OR k.digest = sha256(convert_to($3, 'UTF8'));
		refs := texts || array_remove(ARRAY['user/' || $1, 'network/' || network], NULL) || digests || ARRAY(SELECT 'key/' || d FROM unnest(digests) AS d);
	END IF;
	texts := rate_limit_key_forms(texts || ARRAY(SELECT 'sha256:' || d FROM unnest(digests) AS d));
	ids := rate_limit_key_forms(array_remove(keys::text[] || ids, NULL));
	kept := 0;
	IF NOT dry_run AND EXISTS (SELECT FROM pg_publication p WHERE p.pubdelete) THEN
		FOR name IN SELECT c.oid::regclass FROM pg_class c JOIN pg_class a ON a.oid = to_regclass('rate_limit_audit') AND a.relnamespace = c.relnamespace WHERE c.relkind = 'r' AND c.relreplident = 'd'
				AND c.relname ~ '^rate_limit_audit_[0-9]{8}(_[0-9]+)?$'
		LOOP
			EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', name);
		END LOOP;
	END IF;
	FOR name, condition IN SELECT a.name, 'user_id = ANY ($1) OR key_id = ANY ($2) OR address <<= $3
			OR (user_id IS NULL OR cardinality($1) = 0) AND (key = ANY ($4) OR string_to_array(key, '' '') && $4 OR also && $4)'
		FROM (SELECT 'rate_limit_audit' AS name, 'rate_limit_audit'::text AS place UNION ALL SELECT format('%I.%I', c.relnamespace::regnamespace, c.relname), c.relname FROM pg_class c
				JOIN pg_class a ON a.oid = to_regclass('rate_limit_audit') AND a.relnamespace = c.relnamespace AND a.relowner = c.relowner
				LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
			WHERE c.relkind = 'r' AND c.relname ~ '^rate_limit_audit_[0-9]{8}(_[0-9]+)?$' AND (i.inhrelid IS NULL OR i.inhdetachpending) ORDER BY place) AS a
		UNION ALL -- a table comes before the tables that it refers to
		SELECT t.name, t.condition FROM (VALUES ('rate_limit_metrics', 'user_id = ANY ($1) OR key_id = ANY ($2)', true), ('rate_limit_overrides', 'user_id = ANY ($1) OR key_id = ANY ($2)', true),
			('rate_limit_bans', 'user_id = ANY ($1) OR key_id = ANY ($2) OR network <<= $3', true),
			('rate_limit_api_keys', 'id = ANY ($2)', account), ('rate_limit_users', 'user_id = ANY ($1)', account)) AS t(name, condition, wanted) WHERE t.wanted
	LOOP
		CONTINUE WHEN to_regclass(name) IS NULL;
		IF dry_run THEN
			EXECUTE format('SELECT count(*) FROM %s WHERE %s', name, condition) INTO deleted USING users, keys, network, texts;
		ELSE
			EXECUTE format('DELETE FROM %s WHERE %s', name, condition) USING users, keys, network, texts;
			GET DIAGNOSTICS deleted = ROW_COUNT;
		END IF;
		RETURN NEXT;
	END LOOP;
	IF to_regclass('rate_limit_changes') IS NOT NULL THEN
		SELECT 'rate_limit_changes', 0, count(*) INTO name, deleted, kept FROM rate_limit_changes c WHERE c.ref = ANY (refs);
		RETURN NEXT;
	END IF;
	FOR name IN SELECT t::regclass FROM rate_limit_ledgers() t LOOP
		condition := 'WHERE user_id = ANY ($1) OR key_id = ANY ($2)
			OR ancestors <> ''{}'' AND ancestors && $1
			OR (user_id IS NULL OR cardinality($1) = 0) AND EXISTS (
				SELECT FROM jsonb_array_elements(charges) c
				WHERE string_to_array(c ->> ''key'', '' '') && $3)';
		IF dry_run THEN
			EXECUTE format('SELECT count(*) FROM %s %s', name, condition) INTO deleted USING counted, keys, texts;
		ELSE
			EXECUTE format('UPDATE %1$s SET user_id = CASE WHEN %3$s THEN NULL ELSE user_id END,
				key_id = CASE WHEN %3$s THEN NULL ELSE key_id END,
				ancestors = CASE WHEN $1 = ''{}'' THEN ancestors
					ELSE array_replace(ancestors, $1[1], '''') END,
				charges = (SELECT coalesce(jsonb_agg(CASE WHEN %3$s AND c ->> ''key'' <> ALL (
					rate_limit_key_forms(ARRAY(SELECT rate_limit_counter_key(a) FROM unnest(ancestors) AS a)))
					OR string_to_array(c ->> ''key'', '' '') && $3
					THEN c || ''{"key": null}'' ELSE c END), ''[]'')
					FROM jsonb_array_elements(charges) c) %2$s',
				name, condition, '(user_id = ANY ($1) OR key_id = ANY ($2))')
				USING counted, keys, texts;
			GET DIAGNOSTICS deleted = ROW_COUNT;
		END IF;
		kept := deleted;
		deleted := 0;
		RETURN NEXT;
	END LOOP;
	condition := 'EXISTS (SELECT FROM unnest(string_to_array(c.key, '' '')) WITH ORDINALITY AS p(part, place) WHERE part = ANY (CASE WHEN ''key'' IN (r.count_by[place], split_part(r.count_by[place], '
			'''|'', substring(part FROM ''^([1-9])[|]'')::int)) THEN $1 ELSE $2 END))
		OR r.counts IS NULL AND c.key = ANY ($2)';
	FOR counts IN SELECT * FROM rate_limit_counter_tables() LOOP
		name := counts.counters;
		EXECUTE format('SELECT array_agg(c.prefix), array_agg(c.key) FROM %s c LEFT JOIN %s r ON c.prefix LIKE ''rule/%%'' AND split_part(c.prefix, ''/'', 2) = r.counts WHERE %s', name, rules, condition)
			INTO prefixes, counters USING ids, texts;
		deleted := coalesce(cardinality(counters), 0);
		kept := 0;
		IF deleted > 0 AND NOT dry_run THEN
			kept := deleted;
			deleted := rate_limit_delete_counters(counts.counters, counts.processes, prefixes, counters);
			kept := kept - deleted;
		END IF;
		RETURN NEXT;
	END LOOP;
	condition := format('FROM rate_limit_notices c LEFT JOIN %s r ON c.rule = r.counts WHERE %s', rules, condition);
	IF dry_run THEN
		EXECUTE 'SELECT count(*) ' || condition INTO deleted USING ids, texts;
	ELSE
		EXECUTE format('DELETE FROM rate_limit_notices WHERE ctid = ANY (ARRAY(SELECT c.ctid %s))', condition) USING ids, texts;
		GET DIAGNOSTICS deleted = ROW_COUNT;
	END IF;
	SELECT 'rate_limit_notices', 0 INTO name, kept;
	RETURN NEXT;
END $$;
COMMENT ON FUNCTION rate_limit_forget_person IS 'Deletes all rows about a person, who must not be the parent of users, from the counters, the history, the overrides and the bans. One '
	'argument names the person: user_id (with its API keys), key_id (an API key), key (an API key, or the key of a counter) or address. account also deletes the user and the API keys. Returns for each table '
	'the number of rows that were deleted, or that a dry run would delete, and of kept rows: changes, which proxies need, counters of running requests, and rows of the ledger, which lose user, API key and key.';
`

const countersLedger = `
CREATE TABLE IF NOT EXISTS rate_limit_ledger_retention ( keep interval PRIMARY KEY CONSTRAINT keep_must_be_1_day_or_more CHECK (keep >= interval '1 day'), noticed_at timestamptz NOT NULL DEFAULT '-infinity' );
INSERT INTO rate_limit_ledger_retention SELECT '400 days' WHERE NOT EXISTS (SELECT FROM rate_limit_ledger_retention);
COMMENT ON TABLE rate_limit_ledger_retention IS 'The retention of the ledger: one row. To change it: UPDATE rate_limit_ledger_retention SET keep = ''2 years''.';
COMMENT ON COLUMN rate_limit_ledger_retention.keep IS 'Days that ended longer ago are dropped.';
COMMENT ON COLUMN rate_limit_ledger_retention.noticed_at IS 'When rate_limit_notice_upkeep has run.';
CREATE OR REPLACE FUNCTION rate_limit_ledgers() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN QUERY SELECT format('%s.rate_limit_ledger', c.relnamespace::regnamespace) FROM pg_class c WHERE c.oid = 'rate_limit_ledger'::regclass;
	IF to_regprocedure('rate_limit_shards()') IS NOT NULL THEN
		RETURN QUERY SELECT quote_ident(p.schema) || '.rate_limit_ledger' FROM rate_limit_shards() p ORDER BY p.shard;
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_ledgers IS 'The tables of the ledger, with their schemas: one, and on Citus one for each shard. On Citus, the first one has what was settled before there were shards.';
CREATE OR REPLACE FUNCTION rate_limit_ledger_drop(ledger text, before date) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	old record;
BEGIN
	SET LOCAL citus.propagate_set_commands = 'local';
	SET LOCAL lock_timeout = '100ms';
	FOR old IN SELECT c.oid::regclass AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = ledger::regclass AND c.relname ~ '_[0-9]{8}$'
			AND right(c.relname, 8)::date < before
	LOOP
		EXECUTE format('DROP TABLE %s', old.name);
	END LOOP;
EXCEPTION WHEN lock_not_available THEN
	NULL;
END $$;
COMMENT ON FUNCTION rate_limit_ledger_drop IS 'Drops the days of a ledger before a day, unless another session has locked one for more than 100 ms.';
CREATE OR REPLACE FUNCTION rate_limit_ledger_upkeep(also date DEFAULT NULL) RETURNS void LANGUAGE plpgsql
	SECURITY DEFINER SET lock_timeout = '100ms' AS $$
DECLARE
	today CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
	first CONSTANT date := ((now() - (SELECT least(min(r.keep), interval '1000 years') FROM rate_limit_ledger_retention r)) AT TIME ZONE 'UTC')::date;
	ledger text;
	day date;
	part text;
BEGIN
	IF NOT pg_try_advisory_xact_lock(1885827694) THEN
		RETURN;
	END IF;
	FOR ledger IN SELECT * FROM rate_limit_ledgers() LOOP
		BEGIN
			FOREACH day IN ARRAY ARRAY[today - 1, today, today + 1, today + 2, greatest(today - 7, least(today + 7, coalesce(also, today)))] LOOP
				part := ledger || to_char(day, '_YYYYMMDD');
				CONTINUE WHEN to_regclass(part) IS NOT NULL;
				EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL, PRIMARY KEY (id))', part, ledger);
				EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', ledger, part, day, day + 1);
			END LOOP;
		EXCEPTION WHEN lock_not_available THEN
			NULL;
		END;
		PERFORM rate_limit_ledger_drop(ledger, first);
	END LOOP;
	DELETE FROM rate_limit_notices n WHERE n.at < first AND NOT EXISTS ( SELECT FROM unnest('{f,t}'::boolean[]) AS d(durable), rate_limit_counters('rule/' || n.rule || '/'
			|| n.limit_name, d.durable, ARRAY[n.key]) c WHERE c.window_start = n.period);
END $$;
COMMENT ON FUNCTION rate_limit_ledger_upkeep IS 'Creates the partitions of the ledger for yesterday, today, the next two days, and another day within 7 days (also). Drops those past their retention. A proxy runs it each hour.';
CREATE OR REPLACE FUNCTION rate_limit_ledger_rows("from" timestamptz DEFAULT '-infinity', until timestamptz DEFAULT 'infinity', user_id text DEFAULT NULL, below boolean DEFAULT false)
RETURNS TABLE ("time" timestamptz, day date, id uuid, "user" text, key_id bigint, ancestors text[], model text, input bigint, cache_read bigint, cache_write bigint, output bigint, money numeric,
	charges jsonb) LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN QUERY EXECUTE format('SELECT min(l.time), l.day, l.id, min(l.user_id), min(l.key_id), l.ancestors,
			min(l.model), min(l.input), min(l.cache_read), min(l.cache_write), min(l.output),
			rate_limit_decimal(min(l.money), ''money''),
			jsonb_agg(CASE c ->> ''unit'' WHEN ''money'' THEN c || jsonb_build_object(''units'',
				rate_limit_decimal((c ->> ''units'')::bigint, ''money'')) ELSE c END
				ORDER BY c ->> ''prefix'', c ->> ''key'')
		FROM (%s) l, jsonb_array_elements(l.charges) c GROUP BY l.day, l.id, l.ancestors
		HAVING min(l.time) >= $1 AND min(l.time) < $2 ORDER BY 1, 3',
		(SELECT string_agg(format('SELECT * FROM %s WHERE time >= $1 - interval ''1 day''
			AND time < $2 + interval ''1 day''
			AND day >= ($1 - interval ''32 days'')::date AND day <= ($2 + interval ''2 days'')::date %s', t,
			CASE WHEN user_id IS NOT NULL AND below THEN
				'AND (user_id = $3 OR ancestors <> ''{}'' AND ancestors @> ARRAY[$3])'
				WHEN user_id IS NOT NULL THEN 'AND user_id = $3' ELSE '' END),
			' UNION ALL ') FROM rate_limit_ledgers() t))
		USING "from", until, rate_limit_counted_user(user_id);
END $$;
COMMENT ON FUNCTION rate_limit_ledger_rows IS 'What requests have cost, if they were settled in a time: a row for each request, also on Citus. user_id selects the requests of a user, and with below also of all who were below it then.';
CREATE OR REPLACE FUNCTION rate_limit_counted_user(user_id text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF has_table_privilege(to_regclass('rate_limit_users'), 'SELECT') THEN
		RETURN coalesce((SELECT u.counted_as FROM rate_limit_users u WHERE u.user_id = $1), $1);
	END IF;
	RETURN $1;
END $$;
COMMENT ON FUNCTION rate_limit_counted_user IS 'The name by which a user counts and is in the ledger: the first one of a renamed user.';
CREATE OR REPLACE FUNCTION rate_limit_periods(user_id text, "from" timestamptz, until timestamptz)
RETURNS TABLE (starts timestamptz, ends timestamptz) LANGUAGE plpgsql STABLE ROWS 2 AS $$
DECLARE
	anchor date;
	zone text;
	month CONSTANT interval := '1 month';
BEGIN
	IF NOT coalesce(has_table_privilege(to_regclass('rate_limit_users'), 'SELECT'), false) THEN
		IF num_nonnulls($2, $3) < 2 THEN
			RAISE EXCEPTION 'from, until: must be given: the policy with the periods of users is not in this database' USING ERRCODE = 'invalid_parameter_value';
		END IF;
		RETURN QUERY SELECT $2, $3;
		RETURN;
	END IF;
	SELECT u.period_start, CASE WHEN u.period_start IS NOT NULL THEN u.time_zone END INTO anchor, zone FROM rate_limit_users u WHERE u.user_id = $1;
	anchor := coalesce(anchor, '2000-01-01');
	zone := coalesce(zone, 'UTC');
	$2 := CASE WHEN $2 IS NOT NULL THEN least(greatest($2, '2000-01-01Z'), now()) END;
	$3 := CASE WHEN $3 IS NOT NULL THEN least($3, now() + month) END;
	RETURN QUERY SELECT greatest(p.s, $2), least(p.e, $3) FROM ( SELECT (anchor + a) AT TIME ZONE zone AS s, (anchor + (a + month)) AT TIME ZONE zone AS e
		FROM generate_series(date_trunc('month', coalesce($2, now()) AT TIME ZONE zone) - month, coalesce($3, now()) AT TIME ZONE zone, month) m, age(m, date_trunc('month', anchor::timestamp)) a) p
	WHERE p.s < coalesce($3, 'infinity') AND p.s <= now() AND p.e > coalesce($2, now()) ORDER BY 1;
END $$;
COMMENT ON FUNCTION rate_limit_periods IS 'The billing periods of a user in a time, cut to it. Without a time, the period that is running.';
CREATE OR REPLACE FUNCTION rate_limit_invoice(user_id text, "from" timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL) RETURNS TABLE (period timestamptz, model text, requests bigint, input bigint, cache_read bigint,
	cache_write bigint, output bigint, money numeric) LANGUAGE sql STABLE AS $$
	SELECT p.starts, l.model, count(*), coalesce(sum(l.input), 0)::bigint, coalesce(sum(l.cache_read), 0)::bigint, coalesce(sum(l.cache_write), 0)::bigint,
		coalesce(sum(l.output), 0)::bigint, sum(l.money)
	FROM rate_limit_periods($1, $2, $3) p, rate_limit_ledger_rows(p.starts, p.ends, $1, true) l
	WHERE $1 IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
$$;
COMMENT ON FUNCTION rate_limit_invoice IS 'What a user and all who were below it then have used from a time until another, by billing period and model. Without times: in the period that is running. money NULL: the model had no price.';
SELECT rate_limit_ledger_upkeep();
`

const countersNodes = `
CREATE UNLOGGED TABLE IF NOT EXISTS rate_limit_nodes ( node   text, epoch  bigint DEFAULT 0, seen   timestamptz NOT NULL DEFAULT now(), ended  timestamptz, system bigint DEFAULT (pg_control_system()).system_identifier,
	report json NOT NULL DEFAULT '{}', PRIMARY KEY (node, epoch), CONSTRAINT seen_must_be_from_2000_to_2999 CHECK (seen >= '2000-01-01 UTC' AND seen < '3000-01-01 UTC'),
	CONSTRAINT node_must_have_1_to_200_bytes CHECK (octet_length(node) BETWEEN 1 AND 200) ) WITH (fillfactor = 50);
CALL rate_limit_describe('rate_limit_nodes', $$
The proxies that count here. A proxy renews its row every 3 seconds. The row of a proxy that has ended or is
	silent is deleted after a day. A crash of the server empties the table, and running proxies then write
	their rows again.
node: The name of the proxy, the same after each start. Several proxies may have the same name.
epoch: A number of the process, which is new after each start.
seen: When the proxy renewed this row. The proxy is silent 10 seconds later.
ended: When the proxy stopped in order. NULL: the proxy runs, or was killed.
system: The system identifier of the server that the proxy wrote to. A row with another identifier is from a restored copy and has no meaning here.
report: The proxy's report about itself, which rate_limit_proxies has as columns. Times in the report are
	microseconds by the proxy's clock, and clock is the time of that clock at seen.
$$);
CREATE OR REPLACE FUNCTION rate_limit_behind(applied text, log oid, made_before timestamptz DEFAULT 'infinity') RETURNS bigint
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN (SELECT count(*) FROM rate_limit_changes c WHERE c.at < made_before AND c.xid >= pg_snapshot_xmin(applied::pg_snapshot) AND NOT pg_visible_in_snapshot(c.xid, applied::pg_snapshot)
		HAVING applied IS NOT NULL AND coalesce(log = to_regclass('rate_limit_changes'), true));
EXCEPTION WHEN data_exception OR undefined_table THEN
	RETURN NULL; -- a proxy may report anything, and this database may lack the policy
END $$;
COMMENT ON FUNCTION rate_limit_behind IS 'The number of policy changes before the time made_before that a proxy has not applied yet. applied and '
	'log are from the proxy''s report. NULL: the proxy has no policy, or has read another log of changes.';
CREATE OR REPLACE FUNCTION rate_limit_has_applied(applied text, log oid, change xid8) RETURNS boolean
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN coalesce(log = to_regclass('rate_limit_changes'), true) AND pg_visible_in_snapshot(change, applied::pg_snapshot);
EXCEPTION WHEN data_exception THEN
	RETURN false;
END $$;
COMMENT ON FUNCTION rate_limit_has_applied IS 'Whether a proxy applies the changes of a transaction. applied and log are from the proxy''s report. NULL: the proxy has no policy.';
DO $$ BEGIN
	IF to_regtype('rate_limit_report') IS NULL THEN
		CREATE TYPE rate_limit_report AS (region text, version text, cannot text, applied text, log oid, problems text[], clock bigint, local_from bigint, local_until bigint, requests bigint[],
			open_from bigint, open_until bigint, open_passed bigint, open_refused bigint, locally bigint,
			busiest json);
	END IF;
END $$;
COMMENT ON TYPE rate_limit_report IS 'The fields of rate_limit_nodes.report.';
CREATE OR REPLACE FUNCTION rate_limit_read_report(report json) RETURNS rate_limit_report
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	readable rate_limit_report;
	field text;
BEGIN
	RETURN json_populate_record(readable, report);
EXCEPTION WHEN data_exception THEN
	report := regexp_replace(report::text, '\\u(0000|d[89a-f]..)', '\\ufffd', 'gi');
	FOR field IN SELECT a.attname FROM pg_attribute a WHERE a.attrelid = 'rate_limit_report'::regclass LOOP
		CONTINUE WHEN (report -> field)::text LIKE '%\\ufffd%';
		BEGIN
			readable := json_populate_record(readable, json_build_object(field, report -> field));
		EXCEPTION WHEN data_exception THEN
			NULL;
		END;
	END LOOP;
	RETURN readable;
END $$;
COMMENT ON FUNCTION rate_limit_read_report IS 'The fields of a proxy''s report. A field that cannot be read is NULL.';
CREATE OR REPLACE FUNCTION rate_limit_reported_at(seen timestamptz, clock bigint, at bigint)
	RETURNS timestamptz LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
	RETURN seen + (at - clock) * interval '1 us';
EXCEPTION WHEN data_exception THEN
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_reported_at IS 'The time at of a proxy''s report, by the clock of the database. The report was written at seen, which was clock by the clock of the proxy. NULL: there is no such time.';
CREATE OR REPLACE VIEW rate_limit_proxies WITH (security_invoker) AS SELECT n.node || CASE WHEN n.twin > 1 THEN '#' || n.twin ELSE '' END AS node, r.region, r.version,
		n.ended IS NULL AND n.seen BETWEEN now() - interval '10 s' AND now() + interval '10 s' AS live, n.ended, r.cannot, n.epoch, r.applied IS NOT NULL AS policy, rate_limit_behind(r.applied, r.log) AS behind, n.seen,
		rate_limit_reported_at(n.seen, r.clock, r.local_from) AS local_from, rate_limit_reported_at(n.seen, r.clock, r.local_until) AS local_until, extract(epoch FROM clock_timestamp() - n.seen)::float8 AS seconds_ago,
		coalesce(r.problems, '{}') AS problems, r.requests[1] AS admitted, r.requests[2] AS limited, r.requests[3] AS blocked, r.requests[4] AS rejected, r.requests[5] AS overloaded,
		r.requests[6] AS failed, rate_limit_reported_at(n.seen, r.clock, r.open_from) AS open_from, rate_limit_reported_at(n.seen, r.clock, r.open_until) AS open_until, r.open_passed, r.open_refused, r.locally, r.busiest,
		rate_limit_behind(r.applied, r.log, n.seen - interval '10 s') AS late FROM ( SELECT m.*, row_number() OVER (PARTITION BY m.node ORDER BY m.epoch) AS twin FROM rate_limit_nodes m
		WHERE m.system = (SELECT system_identifier FROM pg_control_system()) ) AS n, rate_limit_read_report(n.report) AS r;
CALL rate_limit_describe('rate_limit_proxies', $$
The proxies of this server and their progress. Rows of rate_limit_nodes from a copy of another server are left out. Of several proxies with one name, the second one has the suffix #2.
region: The region in the proxy's configuration, if any.
version: The version of the proxy's program.
live: Whether the proxy runs.
cannot: The statement that would grant the proxy's role the privileges to decide. NULL: the role has the
	privileges.
policy: Whether the proxy has a policy.
behind: The number of policy changes that the proxy has not applied yet. NULL: the proxy has no policy, or has
	not read the tables since they were restored.
local_from: When the proxy last started to limit by itself, because the database made no decisions. NULL:
	never.
local_until: When the proxy last stopped limiting by itself.
seconds_ago: The seconds since seen.
problems: The rules that the proxy cannot use, each with the permitted values.
admitted: The number of admitted requests since the start of the proxy, including local decisions.
limited: The same with this outcome.
blocked: The same with this outcome.
rejected: The same with this outcome.
overloaded: The same with this outcome.
failed: The same with this outcome.
open_from: When the last series of overloaded and failed requests began. A pause of an hour ends a series.
open_until: When a request last had no decision. NULL: never since the start of the proxy.
open_passed: The number of requests in the last series that passed.
open_refused: The number of requests in the last series that did not pass.
locally: The number of requests that the proxy decided without the database, at its share of each limit.
busiest: The proxy's limits with the most requests since its start, at most 20: {prefix: [admitted, limited]}.
late: The number of changes in behind that were made at least 10 seconds before seen.
$$);
CREATE OR REPLACE FUNCTION rate_limit_unknown_zones() RETURNS TABLE (zone text, users bigint, limits text[])
	LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
	IF has_table_privilege(to_regclass('rate_limit_users'), 'SELECT') AND has_table_privilege(to_regclass('rate_limit_rule_limits'), 'SELECT')
		AND to_regprocedure('rate_limit_known_zone(text)') IS NOT NULL THEN
		RETURN QUERY WITH RECURSIVE found(name) AS ( SELECT min(u.time_zone) FROM rate_limit_users u WHERE u.time_zone <> 'UTC'
			UNION ALL SELECT (SELECT min(u.time_zone) FROM rate_limit_users u WHERE u.time_zone > f.name AND u.time_zone <> 'UTC') FROM found f WHERE f.name IS NOT NULL
		), named AS (SELECT f.name FROM found f UNION SELECT l.time_zone FROM rate_limit_rule_limits l)
		SELECT n.name, (SELECT count(*) FROM rate_limit_users u WHERE u.time_zone = n.name AND u.time_zone <> 'UTC'),
			ARRAY(SELECT concat(l.rule, '/', l.name) FROM rate_limit_rule_limits l WHERE l.time_zone = n.name ORDER BY 1)
		FROM named n WHERE n.name IS NOT NULL AND rate_limit_known_zone(n.name) IS NULL;
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_unknown_zones IS 'The time zones of the policy that the server does not know, with the number of their users, and their limits.';
CREATE OR REPLACE FUNCTION rate_limit_unlimited() RETURNS TABLE (tier text, users bigint)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	most CONSTANT int := 10000; -- The page asks all the time, so not all users are counted.
BEGIN
	IF (SELECT bool_and(coalesce(has_table_privilege(to_regclass('rate_limit_' || name), 'SELECT'), false)) FROM unnest('{tiers,users,api_keys,rules}'::text[]) AS name) THEN
		RETURN QUERY SELECT t.tier, n.users FROM (SELECT t.* FROM rate_limit_tiers t WHERE NOT EXISTS ( SELECT FROM rate_limit_rules r WHERE r.mode = 'enforce' AND r.valid @> now()
					AND (t.tier = ANY (r.tiers) OR r.tiers IS NULL AND r.action = 'limit' AND num_nonnulls(r.hosts, r.paths, r.methods, r.networks) = 0)) OFFSET 0) AS t,
			LATERAL (SELECT count(*) AS users FROM ( (SELECT u.user_id FROM rate_limit_users u WHERE u.tier = t.tier AND u.tier_until > now() LIMIT most)
				UNION (SELECT u.user_id FROM rate_limit_users u WHERE t.tier = 'anonymous' AND u.tier_until <= now() AND u.tier_until < 'infinity' LIMIT most)
				UNION (SELECT k.user_id FROM rate_limit_api_keys k WHERE k.tier = t.tier AND least(k.revoked_at, k.expires_at) > now() LIMIT most)) AS u) AS n
		WHERE n.users > 0 ORDER BY t.rank, t.tier;
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_unlimited IS 'The tiers that users or their API keys have and that no rule in force limits, with the numbers of '
	'users: a number of 10,000 or more may be too low. The tier anonymous includes users with a tier that has ended.';
CREATE OR REPLACE FUNCTION rate_limit_exposed() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF has_table_privilege(to_regclass('rate_limit_grants'), 'SELECT') THEN
		RETURN QUERY SELECT format('The role %s may %s, which rate_limit_grant has not granted. To take that back: REVOKE %s ON %s FROM %1$s', g.role, g.deed,
			string_agg(DISTINCT g.privilege_type, ', '), string_agg(DISTINCT g.place, ', '))
		FROM ( SELECT coalesce(quote_ident(r.rolname), 'PUBLIC') AS role, t.deed, a.privilege_type, c.oid::regclass::text AS place
			FROM (VALUES ('proxy', 'read secrets', '{secrets}'::text[], '{SELECT}'::text[]), ('administrator', 'change the policy', '{tiers,users,api_keys,rules,rule_limits,overrides,'
					'bans,changes,grants}', '{INSERT,UPDATE,DELETE,TRUNCATE,TRIGGER}'))
				AS t(kind, deed, tables, privileges) CROSS JOIN LATERAL unnest(t.tables) AS name
			JOIN pg_class c ON c.oid = to_regclass('rate_limit_' || name)
			CROSS JOIN LATERAL (SELECT c.relacl UNION ALL SELECT attacl FROM pg_attribute WHERE attrelid = c.oid) AS l(acl)
			CROSS JOIN LATERAL aclexplode(l.acl) AS a LEFT JOIN pg_roles r ON r.oid = a.grantee
			WHERE a.privilege_type = ANY (t.privileges) AND a.grantee <> c.relowner AND r.rolsuper IS NOT TRUE AND NOT EXISTS (SELECT FROM rate_limit_grants o WHERE (o.role, o.kind) = (r.rolname, t.kind))
		) AS g GROUP BY g.role, g.deed ORDER BY 1;
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_exposed IS 'A sentence about each role that was granted to change the policy or to read secrets, but not by rate_limit_grant, with the REVOKE.';
CREATE OR REPLACE VIEW rate_limit_state WITH (security_invoker) AS WITH proxies AS ( SELECT p.*, p.cannot IS NOT NULL OR coalesce(p.open_until > now() - interval '2 minutes', false) AS open,
			NOT p.policy AND bool_or(p.policy AND p.live) OVER () AS without_policy FROM rate_limit_proxies p WHERE p.live OR p.ended IS NULL AND p.seen > now() - interval '10 minutes' ), problems AS (
		SELECT s.place, s.state, p.node, p.node || ' ' || s.text AS summary FROM proxies p CROSS JOIN LATERAL (VALUES (1, 'open', p.cannot IS NOT NULL, 'cannot decide: its role lacks privileges, and on_error says '
				'what becomes of requests. To grant them: ' || p.cannot), (2, 'silent', true, format('last reported at %s UTC: if it runs, it does not reach this database.', to_char(p.seen AT TIME ZONE 'UTC', 'HH24:MI:SS'))),
			(3, CASE WHEN p.open THEN 'open' ELSE 'was open' END, p.open_until > now() - interval '1 hour', format('had requests without a decision from %s until %s UTC: on_error let %s pass, and '
					'refused %s.', to_char(p.open_from AT TIME ZONE 'UTC', 'HH24:MI:SS'), to_char(p.open_until AT TIME ZONE 'UTC', 'HH24:MI:SS'), p.open_passed, p.open_refused)),
			(3, CASE WHEN p.local_until > now() - interval '2 minutes' THEN 'local' ELSE 'was local' END, p.local_until > now() - interval '1 hour', format('limited by itself, at its share of each limit, from %s until %s UTC.',
					to_char(p.local_from AT TIME ZONE 'UTC', 'HH24:MI:SS'), to_char(p.local_until AT TIME ZONE 'UTC', 'HH24:MI:SS'))), (4, 'without a policy', p.without_policy, 'has no policy, and other proxies have one: no rule and no ban holds there.'),
			(5, 'behind', p.policy AND p.late IS DISTINCT FROM 0, format('has yet to %s of the policy.', CASE WHEN p.late IS NULL THEN 'read the tables' WHEN p.late = 1 THEN 'apply 1 change' ELSE 'apply ' || p.late || ' changes' END))
		) AS s(place, state, holds, text) WHERE s.holds AND p.live = (s.state <> 'silent') UNION ALL SELECT 6, 'unusable', p.node, format('%s cannot use a rule: %s', p.node, problem) FROM proxies p, unnest(p.problems) AS problem WHERE p.live
		UNION ALL SELECT 7, 'unknown zone', NULL, format('The server does not know the time zone %s of %s: a limit has windows in UTC instead, and a user has windows in the zone of the limit.', z.zone,
			concat_ws(' and ', CASE z.users WHEN 0 THEN NULL WHEN 1 THEN '1 user' ELSE z.users || ' users' END, nullif(array_to_string(z.limits, ', '), ''))) FROM rate_limit_unknown_zones() AS z UNION ALL
		SELECT 8, 'exposed', NULL, e FROM rate_limit_exposed() AS e UNION ALL SELECT 9, 'unlimited', NULL, format('The tier %s has %s, and no rule limits it.', to_json(t.tier),
			CASE t.users WHEN 1 THEN '1 user' ELSE t.users || ' users' END) FROM rate_limit_unlimited() t ) SELECT f.state, f.node, f.summary FROM ( SELECT 0 AS place, CASE WHEN a.live = 0 THEN 'stopped' WHEN a.open THEN 'open'
				WHEN EXISTS (SELECT FROM problems s WHERE s.state NOT LIKE 'was %' AND s.place < 9) THEN 'warning' ELSE 'enforcing' END AS state, NULL::text AS node, concat(CASE a.live WHEN 0 THEN 'No proxy counts in this database'
				ELSE format('Limits are enforced by %s of %s', a.enforcing, CASE a.known WHEN 1 THEN '1 proxy' ELSE a.known || ' proxies' END) END, format(CASE a.known - a.live WHEN 0 THEN '' WHEN 1
					THEN '; %s has not reported for %s s: if it runs, its on_error setting decides there' ELSE '; %s have not reported for %s s or longer: where they run, their on_error settings '
						'decide' END, a.known - a.live, a.silence::bigint), '.') AS summary FROM (SELECT count(*) AS known, count(*) FILTER (WHERE p.live) AS live, count(*) FILTER (WHERE p.live AND NOT p.open AND NOT p.without_policy) AS enforcing,
				bool_or(p.open AND p.live) AS open, min(p.seconds_ago) FILTER (WHERE NOT p.live) AS silence FROM proxies p) AS a UNION ALL SELECT * FROM problems ) AS f ORDER BY f.place, f.node;
CALL rate_limit_describe('rate_limit_state', $$
Whether limits are enforced, as a sentence. The first row is about all limits, each other row about a proxy, a time zone, a role or a tier.
state: enforcing; warning: see the other rows; open: requests have no decision; stopped: no proxy reports.
	States of a proxy: open; silent: it has not reported for 10 seconds; local: it decides without the
	database; was open or was local: within the last hour; without a policy; behind; unusable: a rule.
	State of a time zone: unknown zone. State of a role: exposed, see rate_limit_exposed. State of a tier
	that users have and no rule limits: unlimited, which is no reason for a warning.
node: The proxy of the sentence. NULL: all proxies, or a time zone, a role or a tier.
summary: The sentence.
$$);
CREATE TABLE IF NOT EXISTS rate_limit_secrets ( name  text PRIMARY KEY, value text NOT NULL );
REVOKE ALL ON rate_limit_secrets FROM PUBLIC;
INSERT INTO rate_limit_secrets (name, value) SELECT 'partition', gen_random_uuid()::text || gen_random_uuid()::text WHERE NOT EXISTS (SELECT FROM rate_limit_secrets s WHERE s.name = 'partition') ON CONFLICT DO NOTHING;
CALL rate_limit_describe('rate_limit_secrets', $$
Random texts that the proxies share. Clients must not see them.
name: The purpose. partition: to digest keys for the parameter pk of the header fields RateLimit and RateLimit-Policy.
value: The secret.
$$);
`

const countersNotices = `
CREATE TABLE IF NOT EXISTS rate_limit_notices ( rule       text NOT NULL, limit_name text NOT NULL, key        text COLLATE "C" NOT NULL, period     timestamptz NOT NULL, percent    bigint NOT NULL, used       numeric NOT NULL,
	quota      numeric NOT NULL, at         timestamptz NOT NULL DEFAULT now(), taken_at   timestamptz, PRIMARY KEY (rule, limit_name, key, period, percent) );
CREATE INDEX IF NOT EXISTS rate_limit_notices_to_take ON rate_limit_notices (at) WHERE taken_at IS NULL;
COMMENT ON TABLE rate_limit_notices IS 'Counters that have reached a percentage of their quota: one row in each period. A job of yours takes rows with FOR UPDATE SKIP LOCKED, and sets taken_at. A deleted row would come back.';
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
		SELECT split_part(o.prefix, '/', 2), split_part(o.prefix, '/', 3), c.key, c.window_start, p.percent, rate_limit_decimal(c.count, o.unit), rate_limit_decimal(o.quota, o.unit)
		FROM jsonb_to_recordset($1) AS o(prefix text, key text, durable boolean, unit text, quota bigint, percents bigint[]) CROSS JOIN LATERAL rate_limit_counters(o.prefix, o.durable, ARRAY[o.key]) c
			CROSS JOIN LATERAL unnest(o.percents) AS p(percent)
		WHERE o.quota > 0 AND c.count::numeric * 100 >= o.quota::numeric * p.percent AND c.window_start IS NOT NULL AND o.prefix LIKE 'rule/%/%'
		ORDER BY 1, 2, 3, 4, 5 ON CONFLICT DO NOTHING RETURNING x.*
	LOOP
		n := n + 1;
		PERFORM pg_notify('rate_limit_notices', json_build_object('rule', made.rule, 'limit', made.limit_name, 'key', left(made.key, 1000), 'period', made.period, 'percent', made.percent)::text);
	END LOOP;
	RETURN n;
END $$;
COMMENT ON FUNCTION rate_limit_notice IS 'Makes the notices of counters, a list of objects with prefix, key, durable, unit, quota and percents, '
	'and returns how many are new. Each new one is also a notification of the channel rate_limit_notices.';
CREATE OR REPLACE FUNCTION rate_limit_notice_upkeep() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	IF to_regclass('rate_limit_rules') IS NULL THEN
		RETURN 0;
	ELSIF NOT EXISTS (SELECT FROM rate_limit_rule_limits WHERE notify IS NOT NULL) OR NOT pg_try_advisory_xact_lock(1885827695) THEN
		RETURN 0;
	END IF;
	UPDATE rate_limit_ledger_retention r SET noticed_at = now() WHERE noticed_at NOT BETWEEN now() - interval '5 s' AND now() + interval '5 s';
	IF NOT FOUND THEN
		RETURN 0;
	END IF;
	RETURN (SELECT rate_limit_notice(coalesce(jsonb_agg(c), '[]')) FROM rate_limit_noticed() c);
END $$;
COMMENT ON FUNCTION rate_limit_notice_upkeep IS 'Makes the notices that are missing, at most every 5 seconds, and returns how many. Proxies run it.';
`

const countersShards = `
CREATE OR REPLACE FUNCTION rate_limit_guard(placement bigint) RETURNS void LANGUAGE plpgsql VOLATILE
	SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
	BEGIN
		PERFORM lock_shard_metadata(5, ARRAY[$1]);
	EXCEPTION WHEN lock_not_available THEN
		RAISE EXCEPTION 'placement % is being moved', $1 USING ERRCODE = 'serialization_failure';
	END;
	IF NOT EXISTS (SELECT FROM pg_dist_placement p WHERE p.shardid = $1 AND p.groupid = (SELECT l.groupid FROM pg_dist_local_group l)) THEN
		RAISE EXCEPTION 'placement % is not here', $1 USING ERRCODE = 'serialization_failure';
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_guard(bigint) IS 'Fails unless a placement of the counts is on this server, and keeps the placement here until the transaction ends.';
CREATE OR REPLACE FUNCTION rate_limit_refuse_count() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE object_not_in_prerequisite_state USING MESSAGE = 'the counts of this database are in shards: restart this program, or upgrade it';
END $$;
COMMENT ON FUNCTION rate_limit_refuse_count() IS 'Prevents programs without support for shards from counting outside the shards.';
CREATE OR REPLACE TRIGGER rate_limit_refuse_count BEFORE INSERT ON rate_limit_ephemeral EXECUTE FUNCTION rate_limit_refuse_count();
CREATE OR REPLACE TRIGGER rate_limit_refuse_count BEFORE INSERT ON rate_limit_durable EXECUTE FUNCTION rate_limit_refuse_count();
CREATE OR REPLACE FUNCTION rate_limit_counters(prefix text, durable boolean, keys text[] DEFAULT NULL) RETURNS TABLE (key text, count bigint, prev_count bigint, window_start timestamptz, tokens float8, last_refill timestamptz,
	remainder bigint, hits timestamptz[], slots bigint, held bigint, expires_at timestamptz) LANGUAGE plpgsql STABLE
		SET search_path FROM CURRENT AS $$
DECLARE
	shard record;
BEGIN
	FOR shard IN SELECT p.schema FROM rate_limit_shards() p LOOP
		RETURN QUERY EXECUTE format('SELECT c.key, c.count, c.prev_count, c.window_start, c.tokens, c.last_refill, c.remainder, c.hits,
			(SELECT count(*) FROM unnest(c.slots) AS s WHERE (s >> 32) - (extract(epoch FROM statement_timestamp())::bigint - 946684810) BETWEEN 1 AND 3610
				OR s >> 32 IN (SELECT p.process FROM %1$I.rate_limit_processes p WHERE p.seen BETWEEN statement_timestamp() - interval ''10 s'' AND statement_timestamp() + interval ''10 s'')),
		(SELECT least(coalesce(sum(p.units), 0), 2305843009213693952)::bigint
			FROM (SELECT c.held[i][1] AS session, c.held[i][2] AS units
				FROM generate_subscripts(c.held, 1) i) p
			WHERE p.units > 0 AND (p.session - (extract(epoch FROM statement_timestamp())::bigint - 946684810)
				BETWEEN 1 AND 3610
				OR p.session IN (SELECT p.process FROM %1$I.rate_limit_processes p
					WHERE p.seen BETWEEN statement_timestamp() - interval ''10 s''
					AND statement_timestamp() + interval ''10 s''))),
			c.expires_at FROM %1$I.%2$I c WHERE c.prefix = $1 AND ($2 IS NULL OR c.key = ANY ($2))',
			shard.schema, CASE WHEN durable THEN 'rate_limit_durable' ELSE 'rate_limit_ephemeral' END) USING prefix, keys;
	END LOOP;
END $$;
`

const countersTables = `
CREATE UNLOGGED TABLE IF NOT EXISTS rate_limit_ephemeral ( prefix       TEXT COLLATE "C" NOT NULL, key          TEXT COLLATE "C" NOT NULL, count        BIGINT, prev_count   BIGINT, window_start TIMESTAMPTZ, tokens       DOUBLE PRECISION,
	last_refill  TIMESTAMPTZ, expires_at   TIMESTAMPTZ NOT NULL, hits         TIMESTAMPTZ[], remainder    BIGINT, slot         INT, granted      BIGINT, slots        BIGINT[], held         BIGINT[], PRIMARY KEY (prefix, key) );
CREATE TABLE IF NOT EXISTS rate_limit_durable (LIKE rate_limit_ephemeral, PRIMARY KEY (prefix, key));
ALTER TABLE rate_limit_ephemeral ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[], ADD COLUMN IF NOT EXISTS remainder BIGINT, ADD COLUMN IF NOT EXISTS slot INT, ADD COLUMN IF NOT EXISTS granted BIGINT,
	ADD COLUMN IF NOT EXISTS slots BIGINT[], ADD COLUMN IF NOT EXISTS held BIGINT[], SET (fillfactor = 70);
ALTER TABLE rate_limit_durable ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[], ADD COLUMN IF NOT EXISTS remainder BIGINT, ADD COLUMN IF NOT EXISTS slot INT, ADD COLUMN IF NOT EXISTS granted BIGINT,
	ADD COLUMN IF NOT EXISTS slots BIGINT[], ADD COLUMN IF NOT EXISTS held BIGINT[], SET (fillfactor = 70);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ephemeral_cleanup ON rate_limit_ephemeral (prefix, expires_at);
CREATE INDEX IF NOT EXISTS idx_rate_limit_durable_cleanup ON rate_limit_durable (prefix, expires_at);
CREATE TABLE IF NOT EXISTS rate_limit_processes ( process bigint PRIMARY KEY, seen    timestamptz NOT NULL );
COMMENT ON TABLE rate_limit_ephemeral IS 'The counters that a crash of the server empties.';
COMMENT ON TABLE rate_limit_durable IS 'The counters that survive a crash of the server.';
COMMENT ON TABLE rate_limit_processes IS 'The processes with running requests that hold slots of in_flight limits, or tokens. Each renews its row every 3 seconds.';
COMMENT ON COLUMN rate_limit_processes.process IS 'About the start of the process in seconds since 2000. After a long pause, a process takes another row.';
COMMENT ON COLUMN rate_limit_processes.seen IS 'When the process renewed this row. 10 seconds later, what its requests hold is free.';
CREATE TABLE IF NOT EXISTS rate_limit_ledger ( day         date NOT NULL, id          uuid NOT NULL, time        timestamptz NOT NULL, user_id     text, key_id      bigint, ancestors   text[] NOT NULL DEFAULT '{}', model       text,
	input       bigint, cache_read  bigint, cache_write bigint, output      bigint, money       bigint, charges     jsonb NOT NULL ) PARTITION BY RANGE (day);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_user ON rate_limit_ledger (user_id, time);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ledger_ancestors ON rate_limit_ledger USING gin (ancestors) WHERE ancestors <> '{}';
COMMENT ON TABLE rate_limit_ledger IS 'What requests have cost on limits of tokens and money: a row for each request, or on Citus for each part of it.';
COMMENT ON COLUMN rate_limit_ledger.day IS 'The day on which the request came, in UTC.';
COMMENT ON COLUMN rate_limit_ledger.id IS 'The number of the request.';
COMMENT ON COLUMN rate_limit_ledger.time IS 'When the request was charged, after its response.';
COMMENT ON COLUMN rate_limit_ledger.user_id IS 'The name by which the user counts. NULL: unknown, or forgotten.';
COMMENT ON COLUMN rate_limit_ledger.key_id IS 'The id of the API key. NULL: none, or forgotten.';
COMMENT ON COLUMN rate_limit_ledger.ancestors IS 'The users above the user when the request came, the nearest first, by the names by which they count. Empty: forgotten.';
COMMENT ON COLUMN rate_limit_ledger.model IS 'The model that the request named. NULL: none.';
COMMENT ON COLUMN rate_limit_ledger.input IS 'The tokens of the prompt, without those from a cache. NULL: the response did not report them.';
COMMENT ON COLUMN rate_limit_ledger.cache_read IS 'The tokens of the prompt that came from a cache, as input.';
COMMENT ON COLUMN rate_limit_ledger.cache_write IS 'The tokens of the prompt that were written to a cache, as input.';
COMMENT ON COLUMN rate_limit_ledger.output IS 'The tokens of the answer, as input.';
COMMENT ON COLUMN rate_limit_ledger.money IS 'The cost in millionths of the currency of the prices. NULL: the model has no price.';
COMMENT ON COLUMN rate_limit_ledger.charges IS 'What was charged: a list of objects with the prefix, key and durable of a counter, the unit, and the units.';
`

const countersUsage = `
DO $do$ BEGIN IF to_regprocedure('rate_limit_shards()') IS NULL THEN EXECUTE replace($sql$ CREATE OR REPLACE FUNCTION rate_limit_counters(prefix text, durable boolean, keys text[] DEFAULT NULL)
RETURNS TABLE (key text, count bigint, prev_count bigint, window_start timestamptz, tokens float8, last_refill timestamptz, remainder bigint, hits timestamptz[], slots bigint, held bigint,
	expires_at timestamptz) LANGUAGE sql STABLE AS $$
	SELECT c.key, c.count, c.prev_count, c.window_start, c.tokens, c.last_refill, c.remainder, c.hits, (SELECT count(*) FROM unnest(c.slots) AS s
			WHERE (s >> 32) - (extract(epoch FROM statement_timestamp())::bigint - 946684810) BETWEEN 1
			AND 3610
			OR s >> 32 IN (SELECT p.process FROM {schema}.rate_limit_processes p WHERE p.seen BETWEEN statement_timestamp() - interval '10 s' AND statement_timestamp() + interval '10 s')),
		(SELECT least(coalesce(sum(p.units), 0), 2305843009213693952)::bigint FROM (SELECT c.held[i][1] AS session, c.held[i][2] AS units FROM generate_subscripts(c.held, 1) i) p
			WHERE p.units > 0 AND (p.session - (extract(epoch FROM statement_timestamp())::bigint - 946684810) BETWEEN 1 AND 3610 OR p.session IN (SELECT p.process FROM {schema}.rate_limit_processes p
					WHERE p.seen BETWEEN statement_timestamp() - interval '10 s'
					AND statement_timestamp() + interval '10 s'))),
		c.expires_at
	FROM ( SELECT false AS durable, e.prefix, e.key, e.count::bigint, e.prev_count::bigint, e.window_start, e.tokens::float8, e.last_refill,
			e.remainder, e.hits, e.slots, e.held, e.expires_at FROM {schema}.rate_limit_ephemeral e
		UNION ALL
		SELECT true, d.prefix, d.key, d.count::bigint, d.prev_count::bigint, d.window_start, d.tokens::float8, d.last_refill,
			d.remainder, d.hits, d.slots, d.held, d.expires_at FROM {schema}.rate_limit_durable d
	) c WHERE c.prefix = $1 AND c.durable = $2 AND ($3 IS NULL OR c.key = ANY ($3))
$$;
$sql$, '{schema}', quote_ident(current_schema()));
	END IF;
END $do$;
COMMENT ON FUNCTION rate_limit_counters IS 'The counters of a prefix in the table of durable or of other counters. keys selects some of them. NULL: '
	'all. slots is the number of requests in flight, and held the tokens that running requests hold.';
CREATE OR REPLACE FUNCTION rate_limit_decimal(units bigint, unit text) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE unit WHEN 'money' THEN trim_scale(units * 0.000001) ELSE units END;
COMMENT ON FUNCTION rate_limit_decimal IS 'What people read for a number of units: a decimal number of money, and any other one unchanged.';
CREATE OR REPLACE FUNCTION rate_limit_counter_key(user_id text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN regexp_replace(replace(replace(user_id, '%', '%25'), ' ', '%20'), '^ip:', 'ip%3A');
COMMENT ON FUNCTION rate_limit_counter_key IS 'The key of a user''s counters, as proxies write it.';
CREATE OR REPLACE FUNCTION rate_limit_key_forms(texts text[]) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN ARRAY(SELECT n || t FROM unnest(texts) AS t, unnest('{"",1|,2|,3|,4|,5|,6|,7|,8|,9|}'::text[]) AS n);
COMMENT ON FUNCTION rate_limit_key_forms IS 'The forms of texts in the keys of counters: unchanged, and after the number of an alternative, as in 2|text.';
CREATE OR REPLACE FUNCTION rate_limit_stored_keys(key text) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN array_remove(ARRAY[key, 'sha256:' || encode(sha256(convert_to(key, 'UTF8')), 'hex'),
	substring(key FROM '^[1-9][|]') || 'sha256:' || encode(sha256(convert_to(substr(key, 3), 'UTF8')), 'hex')], NULL);
COMMENT ON FUNCTION rate_limit_stored_keys IS 'The forms of a key in the tables of counters: the key, as lists show it, or its digest.';
CREATE OR REPLACE FUNCTION rate_limit_counter_tables() RETURNS TABLE (counters regclass, processes regclass)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	places text[] := '{""}';
BEGIN
	IF to_regprocedure('rate_limit_shards()') IS NOT NULL THEN
		places := ARRAY(SELECT quote_ident(p.schema) || '.' FROM rate_limit_shards() p ORDER BY p.shard);
	END IF;
	RETURN QUERY SELECT (s.place || t.name)::regclass, (s.place || 'rate_limit_processes')::regclass FROM unnest(places) AS s(place),
			unnest('{rate_limit_durable,rate_limit_ephemeral}'::text[]) AS t(name);
END $$;
COMMENT ON FUNCTION rate_limit_counter_tables IS 'The tables of counters, each with the table of the processes that hold slots or units of its counters.';
CREATE OR REPLACE FUNCTION rate_limit_delete_counters(counters regclass, processes regclass, prefixes text[],
	keys text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	deleted bigint;
BEGIN
	EXECUTE format('WITH locked AS MATERIALIZED (
			SELECT c.prefix, c.key FROM %1$s c JOIN unnest($1, $2) AS u(prefix, key) USING (prefix, key)
				ORDER BY c.prefix COLLATE "C", c.key COLLATE "C" FOR UPDATE OF c)
		DELETE FROM %1$s c USING locked l WHERE c.prefix = l.prefix AND c.key = l.key AND NOT EXISTS (
			SELECT FROM unnest(c.slots) s
				WHERE (s >> 32) - (extract(epoch FROM statement_timestamp())::bigint - 946684810) BETWEEN 1
					AND 3610
				OR s >> 32 IN (SELECT p.process FROM %2$s p
					WHERE p.seen BETWEEN statement_timestamp() - interval ''10 s''
						AND statement_timestamp() + interval ''10 s''))', $1, $2) USING $3, $4;
	GET DIAGNOSTICS deleted = ROW_COUNT;
	RETURN deleted;
END $$;
COMMENT ON FUNCTION rate_limit_delete_counters IS 'Deletes counters of a table, except counters with slots that running requests hold. Returns the number of deleted counters.';
CREATE OR REPLACE FUNCTION rate_limit_counted_prefix(prefix text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF starts_with($1, 'rule/') AND has_table_privilege(to_regclass('rate_limit_rules'), 'SELECT') THEN
		RETURN coalesce((SELECT concat_ws('/', 'rule', to_jsonb(r) ->> 'counted_as', substring($1 FROM '^rule/[^/]*/(.*)$')) FROM rate_limit_rules r
			WHERE r.name = split_part($1, '/', 2) AND to_jsonb(r) ->> 'counted_as' IS NOT NULL), $1);
	END IF;
	RETURN $1;
END $$;
COMMENT ON FUNCTION rate_limit_counted_prefix IS 'The prefix of the counters of rule/RULE/LIMIT, which has the name by which the rule counts. Any other prefix is returned unchanged.';
CREATE OR REPLACE FUNCTION rate_limit_reset(prefix text, key text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	counted CONSTANT text := rate_limit_counted_prefix($1);
	t record;
	found record;
	gone bigint;
	deleted bigint := 0;
BEGIN
	FOR t IN SELECT * FROM rate_limit_counter_tables() LOOP
		EXECUTE format('SELECT array_agg(c.prefix) AS prefixes, array_agg(c.key) AS keys,
			(array_agg(c.slots) FILTER (WHERE c.slots <> ''{}''))[1:1] AS slots
			FROM %s c WHERE c.prefix = $1 AND c.key = ANY ($2)', t.counters)
			INTO found USING counted, rate_limit_stored_keys($2);
		CONTINUE WHEN found.keys IS NULL;
		gone := rate_limit_delete_counters(t.counters, t.processes, found.prefixes, found.keys);
		deleted := deleted + gone;
		IF gone < cardinality(found.keys) THEN
			RAISE EXCEPTION
				'the counter is of an in_flight limit, and running requests hold its slots: a reset would '
				'let more requests run than the limit. A slot is free when its request ends, or 10 seconds '
				'after its process was lost. To free the slots of a lost process now, run: UPDATE '
				'% SET seen = ''-infinity'' WHERE process IN (%)', t.processes,
				(SELECT string_agg(DISTINCT (s >> 32)::text, ', ') FROM unnest(found.slots) AS s WHERE s > 0)
				USING ERRCODE = 'object_in_use';
		END IF;
	END LOOP;
	RETURN deleted;
END $$;
COMMENT ON FUNCTION rate_limit_reset IS 'Deletes the counters of a prefix and a key, so that the full quota is available again. Returns the number of deleted counters. It fails while running requests hold slots of a counter.';
CREATE OR REPLACE FUNCTION rate_limit_usage_of(algorithm text, events bigint, burst bigint, span bigint, count bigint, prev_count bigint, window_start timestamptz, tokens float8, last_refill timestamptz, remainder bigint,
		hits timestamptz[], slots bigint, expires_at timestamptz, at timestamptz DEFAULT now()) RETURNS TABLE (used bigint, resets_at timestamptz) LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
	SELECT greatest(u.used, 0)::bigint, CASE WHEN u.used > 0 THEN CASE algorithm WHEN 'fixed_window' THEN coalesce(window_start + span * interval '1 us', expires_at) WHEN 'sliding_window' THEN window_start
				+ CASE WHEN t.passed < span THEN span ELSE 2 * span END * interval '1 us' WHEN 'sliding_log' THEN (SELECT min(hit) FROM unnest(hits) AS hit WHERE hit > t.oldest) + span * interval '1 us' WHEN 'in_flight' THEN NULL
			ELSE last_refill + least(CASE WHEN t.evenly THEN div((t.quota - b.had) * span + b.part + events - 1, events) ELSE (b.windows + ceil(u.used / events)) * span END, 2305843009213693952)::float8 * interval '1 us' END END FROM (
		SELECT coalesce(burst, events) AS quota, (algorithm = 'gcra' OR burst < events) IS TRUE AS evenly, 10000000 AS slack, (date_part('epoch', at - window_start) * 1000000)::bigint AS passed,
			(date_part('epoch', at - last_refill) * 1000000)::bigint AS drained, greatest(at, hits[cardinality(hits)]) - span * interval '1 us' AS oldest ) AS t, LATERAL (
		SELECT greatest(0, t.drained) / span AS windows, least(coalesce(remainder, 0), events - 1) AS part, floor(greatest(-least(t.quota, 4611686018427387904 / span - t.quota), least(t.quota, tokens)))::bigint::numeric AS had
	) AS b, LATERAL (SELECT CASE WHEN algorithm = 'fixed_window' AND span IS NULL THEN CASE WHEN expires_at > at AND window_start - at <= expires_at - window_start + t.slack * interval '1 us' THEN count END WHEN algorithm = 'fixed_window' THEN
			CASE WHEN t.passed < span AND t.passed >= -span - t.slack THEN count END WHEN algorithm = 'sliding_window' AND t.passed < span THEN CASE WHEN t.passed >= -span - t.slack THEN greatest(0, count) + div(greatest(0,
				prev_count)::numeric * (span - greatest(0, t.passed)) + span - 1, span) END WHEN algorithm = 'sliding_window' THEN CASE WHEN t.passed < 2 * span THEN div(greatest(0, count)::numeric * (2 * span - t.passed) + span - 1, span) END
		WHEN algorithm = 'sliding_log' THEN CASE WHEN hits[cardinality(hits)] <= at + (span + t.slack) * interval '1 us' THEN (SELECT count(*) FROM unnest(hits) AS hit WHERE hit > t.oldest) END WHEN algorithm = 'in_flight' THEN slots
		WHEN events = 0 OR events IS NULL THEN NULL WHEN t.evenly THEN CASE WHEN t.drained >= -div(t.quota::numeric * span + events - 1, events) - t.slack THEN t.quota - b.had
					- div(greatest(0, greatest(0, t.drained) * events::numeric - b.part), span) END WHEN t.drained >= -least(ceil(t.quota::numeric / events) * span, 3155760000000000) - t.slack
			THEN t.quota - floor(least(t.quota, tokens + b.windows::float8 * events))::bigint::numeric END::numeric AS used OFFSET 0) AS u;
END;
COMMENT ON FUNCTION rate_limit_usage_of IS 'The units of a limit that a counter has used at a time. span is the window of the limit in microseconds; NULL for a calendar window and for in_flight. resets_at is the end of the window; for '
	'sliding_log, when the oldest request leaves the window; for token_bucket and gcra, when the full quota is available again. NULL: nothing is used, or the time is unknown.';
`

const historyAnswers = `
CREATE OR REPLACE FUNCTION rate_limit_unit_of(prefix text, limit_name text) RETURNS text
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF $2 IS NOT NULL AND has_table_privilege(to_regclass('rate_limit_rule_limits'), 'SELECT') THEN
		RETURN (SELECT l.unit FROM rate_limit_rule_limits l WHERE 'rule/' || l.rule = $1 AND l.name = $2);
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_unit_of IS 'The unit of a limit of the policy. NULL: there is none, or the policy is on another server.';
CREATE OR REPLACE FUNCTION rate_limit_scale(prefix text, limit_name text) RETURNS numeric LANGUAGE sql STABLE RETURN CASE rate_limit_unit_of(prefix, limit_name) WHEN 'money' THEN 0.000001 ELSE 1 END;
COMMENT ON FUNCTION rate_limit_scale IS 'What a recorded unit of a limit is: a millionth for a limit in money, and otherwise 1.';
CREATE OR REPLACE VIEW rate_limit_audited WITH (security_invoker) AS SELECT a.time, a.outcome, a.shadow, a.outcome IN ('limited', 'blocked', 'rejected') AND NOT a.shadow AS refused, a.reason,
		a.prefix, a.limit_name, a.key, a.user_id, a.key_id, a.tier, a.address, a.host, a.method, a.path, a.node, a.region, a.status, a.cost * s.scale AS cost, a.count, a.weight, a.count * a.weight AS requests, a.quota * s.scale AS quota,
			a.remaining * s.scale AS remaining, a.retry_after_ms / 1000.0::float8 AS retry_after, a.duration_us / 1000000.0::float8 AS duration, a.also, a.id, a.xmin
	FROM rate_limit_audit a, LATERAL (SELECT rate_limit_scale(a.prefix, a.limit_name) AS scale) s;
CALL rate_limit_describe('rate_limit_audited', $$
The audit log with computed columns. Conditions on time, user_id and outcome are as fast as on rate_limit_audit.
refused: Whether the requests were limited, blocked or rejected, and not in the shadow. false for requests without a decision, even if on_error refused them.
requests: The number of requests that the row represents, estimated if only a sample is recorded.
retry_after: For a refusal, the time until the request would pass, in seconds. NULL: the request passed, it would never pass, or the time is unknown.
duration: The time that the decision took, in seconds.
xmin: The transaction that wrote the row: the last 32 bits of its number.
$$);
CREATE OR REPLACE FUNCTION rate_limit_top(since timestamptz, until timestamptz DEFAULT now(), by text DEFAULT 'sender', limit_prefix text DEFAULT '', max_rows bigint DEFAULT 500000)
RETURNS TABLE (prefix text, name text, user_id text, requests bigint, refused bigint, failed bigint,
	last timestamptz, percent_read numeric) LANGUAGE plpgsql SET jit = off SET work_mem = '64MB' AS $$
DECLARE
	plan json;
	part float8; -- the fraction of the pages that is read
BEGIN
	IF $3 IN ('sender', 'path') IS NOT TRUE THEN
		RAISE EXCEPTION 'by: %: must be sender or path', to_json($3) USING ERRCODE = 'invalid_parameter_value';
	END IF;
	EXECUTE format('EXPLAIN (FORMAT JSON) SELECT FROM rate_limit_audit WHERE time >= %L AND time < %L', $1, $2) INTO plan;
	part := least(1, max_rows / greatest(1, (plan -> 0 -> 'Plan' ->> 'Plan Rows')::float8));
	RETURN QUERY SELECT c.prefix, c.name, c.user_id, round(sum(c.requests) / part)::bigint, round(coalesce(sum(c.requests) FILTER (WHERE c.refused), 0) / part)::bigint,
		round(coalesce(sum(c.count) FILTER (WHERE c.outcome IN ('overloaded', 'failed')), 0) / part)::bigint,
		max(c.time), nullif(round(100 * part::numeric, 2), 100)
	FROM (SELECT CASE $3 WHEN 'sender' THEN a.prefix END COLLATE "C" AS prefix, CASE $3 WHEN 'sender' THEN coalesce(a.key, host(a.address)) ELSE coalesce(a.host, '') || a.path END COLLATE "C" AS name,
			CASE $3 WHEN 'sender' THEN a.user_id END COLLATE "C" AS user_id, a.count * a.weight AS requests,
			a.outcome IN ('limited', 'blocked', 'rejected') AS refused, a.count, a.outcome, a.time
		FROM (SELECT * FROM rate_limit_audit WHERE part = 1 UNION ALL SELECT * FROM rate_limit_audit TABLESAMPLE SYSTEM (100 * part) REPEATABLE (0) WHERE part < 1) AS a
		WHERE a.time >= $1 AND a.time < $2 AND NOT a.shadow AND ($4 IN ('', a.prefix, a.prefix || '/' || a.limit_name) OR $4 = 'rule/' AND starts_with(a.prefix, $4))) AS c
	WHERE c.name IS NOT NULL OR $3 = 'sender' GROUP BY 1, 2, 3;
END $$;
COMMENT ON FUNCTION rate_limit_top IS 'The requests of each sender in a period, by the audit log: all, the refused ones, and overloaded and '
	'failed ones together. A sampled row counts as all requests that it represents. A sender is a user with the key of a limit, or with an address if there is no key. With by => path, the host and the path '
	'replace the sender. limit_prefix selects limits, as audit --prefix does. If the period has more than max_rows rows, about as many are read (percent_read of all), and the numbers are estimates. max_rows '
	'=> NULL reads all, at 1.3 seconds for each million rows.';
CREATE OR REPLACE FUNCTION rate_limit_refused(since timestamptz, until timestamptz DEFAULT now(), max_rows int DEFAULT 10) RETURNS TABLE (kind text, prefix text, name text, requests bigint)
	LANGUAGE plpgsql STABLE SET jit = off AS $$
BEGIN
	RETURN QUERY SELECT p.kind, p.prefix, p.name, p.requests FROM ( SELECT c.*, row_number() OVER (PARTITION BY c.kind ORDER BY c.requests DESC, c.name, c.prefix) AS place
		FROM (SELECT CASE 0 WHEN GROUPING(a.user_id) THEN 'users' WHEN GROUPING(a.key) THEN 'keys' WHEN GROUPING(a.address) THEN 'addresses' ELSE 'causes' END AS kind, a.prefix,
				coalesce(a.user_id, a.key, abbrev(a.address), a.cause) AS name,
				round(sum(a.requests))::bigint AS requests
			FROM (SELECT d.*, coalesce(nullif(concat_ws('/', d.prefix, d.limit_name), ''), replace(d.reason, '_', ' ')) AS cause FROM rate_limit_audited d) a
			WHERE a.time >= $1 AND a.time < $2 AND a.refused
			GROUP BY GROUPING SETS (a.user_id, (a.key, a.prefix), a.address, a.cause)) AS c
		WHERE c.name IS NOT NULL) AS p
	WHERE p.place <= $3 ORDER BY p.kind, p.place;
END $$;
COMMENT ON FUNCTION rate_limit_refused IS 'The users, keys of limits and addresses with the most refused requests in a period, and the most '
	'frequent causes, by the audit log. A cause is a limit, a rule or another reason. Each kind has at most max_rows rows.';
CREATE OR REPLACE FUNCTION rate_limit_ledger_sum(user_id text, first date, last date, prefix text,
	limit_name text) RETURNS numeric LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_unit_of($4, $5) <> 'requests' AND has_table_privilege(to_regclass('rate_limit_ledger'), 'SELECT') THEN
		RETURN (SELECT coalesce(sum((c ->> 'units')::numeric), 0) FROM rate_limit_ledger_rows($2::timestamp AT TIME ZONE 'UTC',
				($3 + 1)::timestamp AT TIME ZONE 'UTC', $1) r, jsonb_array_elements(r.charges) c
			WHERE c ->> 'prefix' = rate_limit_counted_prefix($4 || '/' || $5) AND CASE WHEN c ->> 'key' IS NULL THEN '' <> ALL (r.ancestors) ELSE string_to_array(c ->> 'key', ' ')
						&& rate_limit_key_forms(ARRAY[rate_limit_counter_key(r."user")])
					OR NOT string_to_array(c ->> 'key', ' ') && rate_limit_key_forms(ARRAY( SELECT rate_limit_counter_key(a) FROM unnest(r.ancestors) AS a)) END);
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_ledger_sum IS 'What the requests of a user have cost on a limit of tokens or money from first to last, by the ledger, '
	'without the charges of users above it. NULL: another limit, or the ledger is on another server.';
CREATE OR REPLACE FUNCTION rate_limit_usage_between(user_id text, first date, last date) RETURNS TABLE (day date, key_id bigint, prefix text, limit_name text, requests bigint, refused bigint,
	charged numeric, settled numeric, last_request timestamptz) LANGUAGE sql STABLE AS $$
	SELECT (m.time AT TIME ZONE 'UTC')::date, m.key_id, m.prefix, m.limit_name, rate_limit_add(sum(m.requests), 0), rate_limit_add(sum(m.limited + m.blocked + m.rejected), 0),
		rate_limit_add(sum(m.charged), 0) * rate_limit_scale(m.prefix, m.limit_name),
		coalesce(rate_limit_ledger_sum($1, $2, $3, m.prefix, m.limit_name), rate_limit_add(sum(m.settled), 0)::numeric),
		max(m.last_request)
	FROM rate_limit_metrics m WHERE m.granularity = 'day' AND m.user_id = $1 AND m.time >= $2::timestamp AT TIME ZONE 'UTC' AND m.time < ($3 + 1)::timestamp AT TIME ZONE 'UTC'
	GROUP BY GROUPING SETS ((m.time), (m.key_id), (m.prefix, m.limit_name), ()) ORDER BY 1, 2, 3, 4
$$;
COMMENT ON FUNCTION rate_limit_usage_between IS 'A user''s usage from first to last, which are days in UTC, added up in four ways: by day, by API key '
	'(key_id 0: requests without an API key), by limit, and in total. In each row, the columns of the other ways are NULL. Use charged and settled only from the rows by limit, because the other rows add units of '
	'different limits. settled of limits of tokens or money is from the ledger.';
CREATE OR REPLACE VIEW rate_limit_minutes WITH (security_invoker) AS SELECT time, sum(admitted)::bigint AS admitted, sum(limited)::bigint AS limited, sum(blocked)::bigint AS blocked, sum(rejected)::bigint AS rejected,
		sum(overloaded)::bigint AS overloaded, sum(failed)::bigint AS failed, sum(shadow)::bigint AS shadow FROM rate_limit_metrics WHERE granularity = 'minute' GROUP BY time;
CALL rate_limit_describe('rate_limit_minutes', $$
The requests of all proxies in each minute with requests, by outcome.
$$);
CREATE OR REPLACE FUNCTION rate_limit_why(who text, at text DEFAULT 'now') RETURNS TABLE (summary text, "time" timestamptz, outcome text, reason text, prefix text, limit_name text,
	key text, user_id text, key_id bigint, address inet, method text, host text, path text, status integer, requests bigint, quota numeric, remaining numeric, retry_after float8, node text)
	LANGUAGE plpgsql STABLE SET jit = off AS $$
#variable_conflict use_column
DECLARE
	keys CONSTANT text[] := ARRAY(SELECT DISTINCT p || k FROM unnest('{"",1|,2|,3|,4|,5|,6|,7|,8|,9|}'::text[]) AS p, unnest(ARRAY[$1, replace(replace($1, '%', '%25'), ' ', '%20')]) AS k);
	number CONSTANT bigint := substring($1 FROM '^#([1-9][0-9]{0,17})$');
	today CONSTANT timestamp := now() AT TIME ZONE 'UTC';
	until timestamptz;
	ip inet;
	minute timestamptz;
BEGIN
	BEGIN
		ip := $1;
	EXCEPTION WHEN invalid_text_representation THEN
		NULL; -- not an address
	END;
	BEGIN
		until := CASE WHEN $2 ~ '^\d?\d:\d\d(:\d\d)?$' THEN (today::date + $2::time - CASE WHEN $2::time > today::time THEN interval '1 day' ELSE '0' END) AT TIME ZONE 'UTC' ELSE $2::timestamptz END;
		IF isfinite(until) IS NOT TRUE THEN
			RAISE data_exception;
		END IF;
		until := date_trunc('minute', until) + interval '1 minute';
	EXCEPTION WHEN data_exception THEN
		RAISE EXCEPTION 'at: %: must be a time such as 14:05, the latest one in UTC, or 2026-11-27 14:05Z', to_json($2) USING ERRCODE = 'invalid_parameter_value';
	END;
	SELECT date_trunc('minute', max(f.time)) INTO minute FROM ( SELECT * FROM rate_limit_audit WHERE user_id = $1 UNION ALL SELECT * FROM rate_limit_audit WHERE key = ANY (keys)
		UNION ALL SELECT * FROM rate_limit_audit WHERE key_id = number
		UNION ALL SELECT * FROM rate_limit_audit WHERE address = ip) AS f
	WHERE f.time >= until - interval '1 day' AND f.time < until AND f.outcome <> 'admitted' AND NOT f.shadow;
	IF minute IS NULL THEN
		summary := concat(CASE WHEN until > now() THEN 'The audit log is up to 2 s behind: if the request was just now, ask again. ' END, format('No refusal of %s is recorded in the day before %s UTC.', $1,
			to_char(until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')));
		RETURN NEXT;
		RETURN;
	END IF;
	RETURN QUERY SELECT format('%s %s%s %s UTC, %s %s%s: %s.', concat($1, CASE WHEN $1 ~ '^(#|[1-9][|])?[0-9]+$' AND a.key_id IS NOT NULL THEN format(' (%s)', concat_ws(', ', 'API key ' || a.key_id,
					rate_limit_key_name(a.key_id))) END),
			CASE WHEN a.outcome NOT IN ('overloaded', 'failed') THEN 'was refused' WHEN a.status > 0 THEN 'was refused without a decision' ELSE 'passed without a decision' END,
			CASE WHEN a.total = 1 THEN ' at' ELSE ' ' || a.total || ' times within a minute, last at' END,
			to_char(a.time AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), a.method, a.host, a.path,
			CASE WHEN a.outcome = 'limited' THEN concat('the limit ', concat_ws('/', a.prefix, a.limit_name), ' of ' || CASE WHEN a.key <> a.user_id THEN a.key END,
				CASE WHEN a.reason = 'no_quota' THEN ' has a quota of 0'
				ELSE concat(' had ', a.remaining, ' of ', a.quota, ' left', CASE WHEN a.retry_after > 0 THEN format(', and would have let it pass %s later', CASE
						WHEN a.retry_after <= 120 THEN ceil(a.retry_after) || ' s'
						WHEN a.retry_after <= 7200 THEN ceil(a.retry_after / 60) || ' min'
						ELSE ceil(a.retry_after / 3600) || ' h' END) END) END)
			WHEN a.outcome = 'blocked' AND a.prefix <> '' THEN concat('the rule ', a.prefix, ' blocks')
			ELSE replace(coalesce(a.reason, a.outcome), '_', ' ') END),
		a.time, a.outcome, a.reason, a.prefix, a.limit_name, a.key, a.user_id, a.key_id, a.address, a.method,
		a.host, a.path, a.status, a.total, a.quota, a.remaining, a.retry_after, a.node
	FROM (SELECT f.*, row_number() OVER (kind ORDER BY f.time DESC) AS place, round(sum(f.requests) OVER kind)::bigint AS total
		FROM rate_limit_audited f WHERE f.time >= minute AND f.time < minute + interval '1 minute' AND f.outcome <> 'admitted' AND NOT f.shadow
			AND (f.user_id = $1 OR f.key = ANY (keys) OR f.key_id = number OR f.address = ip)
		WINDOW kind AS (PARTITION BY f.outcome, f.reason, f.prefix, f.limit_name, f.method, f.host, f.path, f.status)) AS a
	WHERE a.place = 1 ORDER BY a.time DESC LIMIT 100;
END $$;
COMMENT ON FUNCTION rate_limit_why IS 'Says why a sender was refused: the latest minute, in the day up to the minute of at, with a request '
	'that was refused or had no decision. Each row is a sentence about one kind of request and cause, the latest first. requests counts all of the kind, and the other columns describe the latest one. who is a '
	'user, an address, the key of a counter, or # and the id of an API key. at is a time, or a time of day, such as 14:05, for the latest one in UTC.';
`

const historyEnd = `
CREATE OR REPLACE FUNCTION rate_limit_history_version() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 3';
COMMENT ON FUNCTION rate_limit_history_version IS 'The version of the tables of the history. The last command of the migration creates it.';
`

// historyVersion is the number in history/end.sql.
const historyVersion = "3"

const historyMetrics = `
CREATE OR REPLACE FUNCTION rate_limit_add(a numeric, b bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN least(coalesce(a, 0) + b, 9223372036854775807);
COMMENT ON FUNCTION rate_limit_add IS 'The sum of two numbers, at most the largest bigint, so that no number from a proxy makes a sum fail. NULL in a counts as 0.';
CREATE OR REPLACE FUNCTION rate_limit_add_buckets(a bigint[], b bigint[]) RETURNS bigint[]
	LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	FOR i IN 1..coalesce(array_length(b, 1), 0) LOOP
		a[i] := least(coalesce(a[i], 0)::numeric + coalesce(b[i], 0), 9223372036854775807);
	END LOOP;
	RETURN a;
END $$;
COMMENT ON FUNCTION rate_limit_add_buckets IS 'The sum of two arrays, element by element. Missing elements count as 0.';
CREATE OR REPLACE AGGREGATE rate_limit_sum(bigint[]) (SFUNC = rate_limit_add_buckets, STYPE = bigint[], INITCOND = '{}', COMBINEFUNC = rate_limit_add_buckets, PARALLEL = SAFE);
COMMENT ON AGGREGATE rate_limit_sum(bigint[]) IS 'The sum of arrays, element by element, such as the latencies of several rows of rate_limit_metrics.';
CREATE OR REPLACE FUNCTION rate_limit_percentile(buckets bigint[], p float8) RETURNS float8 LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN (SELECT 0.1 * power(2::float8, least(u.i, 20) - 1) * (1 - CASE WHEN u.i = 1 THEN 1
	WHEN u.i <= 20 THEN 0.5 ELSE 0 END * (u.upto - u.rank) / u.n) FROM (SELECT b.i, b.n, sum(b.n) OVER (ORDER BY b.i)::float8 AS upto, least(greatest(ceil(p * sum(b.n) OVER ()), 1), sum(b.n) OVER ())::float8 AS rank
		FROM unnest(buckets) WITH ORDINALITY AS b(n, i)) AS u WHERE u.n > 0 AND u.upto >= u.rank ORDER BY u.i LIMIT 1);
COMMENT ON FUNCTION rate_limit_percentile IS 'The p-quantile of decision times in milliseconds, such as p95 for p = 0.95. Bucket 1 counts times up to '
	'0.1 ms, bucket i longer times up to 0.1 * 2^(i-1) ms, and bucket 21 all times above 52 s, with the result 52428.8. The result is interpolated within its bucket: from 0.1 to 52428.8 it is within a factor '
	'of 2 of the exact time. NULL: there are no decisions. To combine several rows, add their buckets with rate_limit_sum.';
CREATE OR REPLACE VIEW rate_limit_traffic WITH (security_invoker) AS SELECT rate_limit_percentile(m.latency, 0.5) AS p50_ms, rate_limit_percentile(m.latency, 0.95) AS p95_ms, rate_limit_percentile(m.latency, 0.99) AS p99_ms, m.*
	FROM rate_limit_metrics m;
CALL rate_limit_describe('rate_limit_traffic', $$
rate_limit_metrics with percentiles of decision times.
p50_ms: The median time of a decision, in milliseconds.
p95_ms: The time that 95 % of the decisions did not exceed, in milliseconds.
p99_ms: The time that 99 % of the decisions did not exceed, in milliseconds.
$$);
`

const historyPartitions = `
CREATE OR REPLACE FUNCTION rate_limit_caller() RETURNS text LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT coalesce(nullif(current_setting('role'), 'none'), session_user)
$$;
COMMENT ON FUNCTION rate_limit_caller IS 'The calling role, even in a function with the rights of the owner.';
CREATE OR REPLACE FUNCTION rate_limit_owns_history() RETURNS boolean
	LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
BEGIN
	RETURN (SELECT pg_has_role(rate_limit_caller(), c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = 'rate_limit_retention'::regclass);
END $$;
COMMENT ON FUNCTION rate_limit_owns_history IS 'Whether the calling role has the rights of the owner of the history.';
CREATE OR REPLACE FUNCTION rate_limit_partitions(parent text DEFAULT 'rate_limit_audit') RETURNS TABLE (id oid, name text, begins timestamptz, ends timestamptz)
	LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT p.id, p.name, CASE p.first WHEN 'MINVALUE' THEN '-infinity' ELSE p.first END::timestamptz, CASE p.last WHEN 'MAXVALUE' THEN 'infinity' ELSE p.last END::timestamptz
	FROM (SELECT c.oid AS id, format('%I.%I', n.nspname, c.relname) AS name, substring(pg_get_expr(c.relpartbound, c.oid) FROM 'FROM [(]''?([^'')]+)') AS first,
			substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO [(]''?([^'')]+)') AS last
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE i.inhparent = $1::regclass) AS p
	ORDER BY 3
$$;
COMMENT ON FUNCTION rate_limit_partitions IS 'The partitions of a table of the history, with their schemas, starts and ends.';
CREATE OR REPLACE FUNCTION rate_limit_make_partition(day date, parent text DEFAULT 'rate_limit_audit')
	RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	space CONSTANT text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = parent::regclass);
	name text;
	same record;
BEGIN
	IF day IS NULL OR day < date '0001-01-01' OR day > date '9999-12-31' THEN
		RAISE EXCEPTION 'day: %: must be a day from 0001-01-01 to 9999-12-31', coalesce(day::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
	END IF;
	FOR attempt IN 1..2 LOOP
		IF EXISTS (SELECT FROM rate_limit_partitions(parent) p WHERE p.begins <= day::timestamptz AND p.ends > day::timestamptz) THEN
			RETURN NULL;
		END IF;
		EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', parent::regclass);
	END LOOP;
	IF abs(day - (now() AT TIME ZONE 'UTC')::date) > 8 AND NOT rate_limit_owns_history() THEN
		RAISE EXCEPTION 'day: %: must be within 8 days of today, because % does not own the tables', day, rate_limit_caller() USING ERRCODE = 'invalid_parameter_value';
	END IF;
	FOR n IN 1..1000 LOOP
		name := parent || to_char(day, '_YYYYMMDD') || CASE n WHEN 1 THEN '' ELSE '_' || n END;
		EXIT WHEN to_regclass(space || '.' || name) IS NULL;
	END LOOP;
	EXECUTE format('CREATE TABLE %s.%s (LIKE %s INCLUDING ALL)', space, name, parent::regclass);
	FOR same IN SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = (space || '.' || name)::regclass AND i.indisunique LOOP
		EXECUTE format('ALTER TABLE %s.%s REPLICA IDENTITY USING INDEX %I', space, name, same.relname);
	END LOOP;
	IF NOT FOUND THEN -- a publication of deletes would otherwise refuse them
		EXECUTE format('ALTER TABLE %s.%s REPLICA IDENTITY FULL', space, name);
	END IF;
	EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s.%s FOR VALUES FROM (%L) TO (%L)', parent::regclass, space, name, day::timestamptz, (day + 1)::timestamptz);
	RETURN space || '.' || name;
EXCEPTION WHEN duplicate_table OR invalid_object_definition THEN
	IF current_setting('transaction_isolation') = 'read committed' THEN
		RAISE;
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_make_partition IS 'Creates the partition of a table of the history for a day in UTC, and returns its name with the schema, '
	'or NULL if it exists already. Writers do not wait. The name is rate_limit_audit_YYYYMMDD, followed by _2 if a detached table has that name. For a role that does not own the tables, the day must be within 8 days of today.';
`

const historyRecord = `
CREATE OR REPLACE FUNCTION rate_limit_begin_batch(writer text, node text, region text, batch bigint,
	written bigint, dropped bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
BEGIN
	PERFORM set_config('lock_timeout', '1s', true);
	INSERT INTO rate_limit_writers AS w (writer, node, region, batch, written, dropped, seen) VALUES ($1, $2, nullif($3, ''), $4, $5, $6, now())
	ON CONFLICT (writer) DO UPDATE SET node = excluded.node, region = excluded.region, batch = excluded.batch, written = excluded.written, dropped = excluded.dropped, seen = excluded.seen
		WHERE w.batch < excluded.batch;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'batch % of this writer is written already', $4 USING ERRCODE = 'unique_violation';
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_begin_batch IS 'The first statement of a transaction that writes a batch. It fails with unique_violation if this batch '
	'or a later batch is already written, so a writer that got no answer can send the batch again. The transaction waits for a lock for at most 1 s. written and dropped are totals.';
DO $do$ DECLARE definition text;
BEGIN FOR definition IN WITH columns AS ( SELECT a.attrelid, a.attname AS name, a.attnum AS n, a.attnotnull AS needed, format_type(a.atttypid, NULL) AS type, a.atttypid IN ('int8'::regtype, 'int4'::regtype, 'timestamptz'::regtype) AS number
			FROM pg_attribute a WHERE a.attrelid IN ('rate_limit_audit'::regclass, 'rate_limit_metrics'::regclass) AND a.attnum > 0 AND NOT a.attisdropped AND a.attname NOT IN ('node', 'region', 'id', 'granularity') ), lists AS (
			SELECT c.attrelid = 'rate_limit_audit'::regclass AS of_audit, string_agg(quote_ident(c.name), ', ' ORDER BY c.n) AS names, string_agg(format('%I %s[]', c.name, CASE WHEN c.number THEN 'bigint' ELSE 'text' END), ', '
					ORDER BY c.n) AS arguments, string_agg(format('unnest(%1$I) AS %1$I', c.name), ', ' ORDER BY c.n) AS elements, string_agg(format(CASE WHEN c.name = 'time' AND c.attrelid = 'rate_limit_metrics'::regclass
							THEN 'date_trunc(g.granularity, timestamptz ''epoch'' + r.time * interval ''1 us'', ''UTC'')' WHEN c.type LIKE 'timestamp%' THEN 'timestamptz ''epoch'' + r.%1$I * interval ''1 us'''
						WHEN c.number AND NOT c.needed THEN 'CASE WHEN r.%1$I >= 0 THEN r.%1$I END' WHEN c.needed THEN 'r.%1$I::%2$s' ELSE 'nullif(r.%1$I, '''')::%2$s' END, c.name, c.type), ', ' ORDER BY c.n) AS values,
				string_agg(quote_ident(c.name), ' || ' ORDER BY c.n) FILTER (WHERE c.number) AS numbers, string_agg(format('%1$I = ' || CASE c.type WHEN 'bigint' THEN 'rate_limit_add' WHEN 'bigint[]' THEN 'rate_limit_add_buckets'
						ELSE 'greatest' END || '(m.%1$I, excluded.%1$I)', c.name), ', ' ORDER BY c.n) FILTER (WHERE c.n > last.n) AS additions FROM columns c, (SELECT n FROM columns WHERE name = 'endpoint') AS last GROUP BY c.attrelid ) SELECT format($f$
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
			PERFORM rate_limit_make_partition(d.day, p) FROM (SELECT DISTINCT ((timestamptz 'epoch' + t * interval '1 us') AT TIME ZONE 'UTC')::date AS day FROM unnest("time") AS t
				ORDER BY day) d, unnest(%L::text[]) AS p;
		END;
	END LOOP;
END $$$f$, CASE WHEN of_audit THEN 'audit' ELSE 'metrics' END,
			concat(CASE WHEN of_audit THEN 'node text, ' END, arguments), CASE WHEN NOT of_audit THEN format($f$IF (SELECT min(n) FROM unnest(%s) n) < 0 OR array_to_string(latency, '') LIKE '%%-%%' THEN RAISE invalid_parameter_value
			USING MESSAGE = 'a number of the metrics is below 0: metrics only grow';
	END IF;$f$, numbers) END, CASE WHEN of_audit THEN format($f$INSERT INTO rate_limit_audit (node, region, id, %s) SELECT $2, nullif($1, ''), nextval('rate_limit_audit_id'), %s FROM (SELECT %s) r$f$, names, values, elements)
			ELSE format($f$INSERT INTO rate_limit_metrics AS m (region, granularity, %s) SELECT $1, g.granularity, %s FROM (SELECT %s) r, unnest('{minute,hour,day}'::text[]) AS g(granularity)
			ORDER BY 2, r.user_id, r.key_id, r.prefix, r.limit_name, r.endpoint ON CONFLICT (user_id, time, key_id, prefix, limit_name, endpoint, region, granularity) DO UPDATE SET %s$f$, names, values, elements, additions) END,
			CASE WHEN of_audit THEN '{rate_limit_audit}' ELSE '{rate_limit_metrics_minute,rate_limit_metrics_hour}' END) FROM lists LOOP EXECUTE definition;
	END LOOP;
END $do$;
COMMENT ON FUNCTION rate_limit_record_audit IS 'Writes rows of rate_limit_audit, and creates the partitions that they need. Times are microseconds since 1970. An empty text and a number below 0 represent NULL.';
COMMENT ON FUNCTION rate_limit_record_metrics IS 'Adds to the minutes, hours and days of rate_limit_metrics, and creates the partitions that they need. '
	'All rows must be of one minute, and no two rows may be of the same user, API key, limit and endpoint. Times are microseconds since 1970.';
CREATE OR REPLACE FUNCTION rate_limit_retain(what text, keep text, set_by text) RETURNS text
	LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
	kept CONSTANT interval := (SELECT r.keep FROM rate_limit_retention r WHERE r.what = $1 FOR UPDATE);
	most CONSTANT interval := '1000 years';
BEGIN
	IF (now() - least($2::interval, most) <= now() - least(kept, most)) IS NOT TRUE AND NOT has_column_privilege(rate_limit_caller(), 'rate_limit_retention'::regclass, 'keep', 'UPDATE') THEN
		RETURN format('%s is kept for %s: the role %s may not shorten that; an administrator can, with UPDATE rate_limit_retention SET keep = %L WHERE what = %L',
			$1, coalesce(kept::text, 'ever'), rate_limit_caller(), $2, $1);
	END IF;
	INSERT INTO rate_limit_retention AS r (what, keep, set_by, set_at) VALUES ($1, $2::interval, nullif($3, ''), now())
	ON CONFLICT (what) DO UPDATE SET keep = excluded.keep, set_by = excluded.set_by, set_at = excluded.set_at WHERE r.keep <> excluded.keep;
	RETURN NULL;
EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
	IF $1 IN ('audit', 'metrics_minute', 'metrics_hour', 'metrics_day') THEN
		RAISE EXCEPTION 'keep: %: must be 1 day or more, as in 90 days', to_json($2) USING ERRCODE = 'invalid_parameter_value';
	END IF;
	RAISE EXCEPTION 'what: %: must be audit, metrics_minute, metrics_hour or metrics_day', to_json($1) USING ERRCODE = 'invalid_parameter_value';
END $$;
COMMENT ON FUNCTION rate_limit_retain IS 'Sets the retention of a part of the history (what) to an interval (keep). Returns NULL, or the reason for a refusal: only a role that may update rate_limit_retention can shorten a retention.';
`

const historyTables = `
CREATE TABLE IF NOT EXISTS rate_limit_audit ( time           timestamptz NOT NULL, cost           bigint NOT NULL, count          bigint NOT NULL DEFAULT 1, quota          bigint, remaining      bigint, key_id         bigint,
	retry_after_ms bigint, duration_us    bigint NOT NULL, weight         float8 NOT NULL DEFAULT 1, status         integer, shadow         boolean NOT NULL DEFAULT false, outcome        text NOT NULL, reason         text,
	prefix         text NOT NULL, limit_name     text, key            text, user_id        text, tier           text, address        inet, host           text, method         text, path           text, node           text NOT NULL,
	region         text, also           text[], id             bigint, CONSTRAINT outcome_must_be_as_in_docs_metrics_md CHECK (outcome IN ('admitted', 'limited', 'blocked', 'rejected', 'overloaded', 'failed')) ) PARTITION BY RANGE (time);
CREATE SEQUENCE IF NOT EXISTS rate_limit_audit_id OWNED BY rate_limit_audit.id;
COMMENT ON SEQUENCE rate_limit_audit_id IS 'The ids of the rows of rate_limit_audit.';
CREATE INDEX IF NOT EXISTS rate_limit_audit_time ON rate_limit_audit USING brin (time) WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX IF NOT EXISTS rate_limit_audit_user ON rate_limit_audit (user_id, time) WHERE user_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS rate_limit_audit_outcome ON rate_limit_audit (outcome, time) WHERE outcome <> 'admitted';
CREATE INDEX IF NOT EXISTS rate_limit_audit_who ON rate_limit_audit USING brin (time, key text_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001),
	address inet_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001), key_id int8_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001)) WITH (pages_per_range = 8, autosummarize = on);
CALL rate_limit_describe('rate_limit_audit', $$
The audit log: a row for each recorded request, or for several equal refusals. A refusal that a shadow rule would have made has a row of its own.
time: The time of the decision, by the clock of the proxy.
cost: The cost of one request. For a refused request, the cost that it would have had.
count: The number of equal refusals within the same second that this row represents. The other columns describe the first of them.
quota: The full quota. NULL: no limit decided.
remaining: The units of the quota left after the decision.
key_id: The id of the API key in rate_limit_api_keys. NULL: none.
retry_after_ms: For a refusal, the time until the request would pass, in milliseconds. NULL: the request passed, it would never pass, or the time is unknown.
duration_us: The time that the decision took, in microseconds.
weight: The number of requests that each request of this row represents: above 1 if only a sample is recorded. count * weight is the estimated number of requests.
status: The HTTP status of a refusal. NULL: the request passed.
shadow: Whether a shadow rule would have had this outcome. The request has another row with its own outcome.
outcome: admitted; limited: refused by a limit; blocked: by a ban or a block rule; rejected: because the API
	key, the path or the body is not valid; overloaded: not decided in time while others were; failed: not
	decided.
reason: The reason for the outcome, if no limit decided: unknown_key, key_expired, key_revoked, no_key,
	ambiguous_path, upgrade, ambiguous_body, background, slow_body, long_body, many_bodies, no_price, banned,
	blocked, no_quota, timeout or unavailable.
prefix: The prefix of the limit in a configuration, or rule/ and the name of the rule; empty if no limit
	applied. If several limits applied, it is the limit that refused, otherwise the limit with the least
	remaining.
limit_name: The name of the limit of the rule. NULL: a limit in a configuration.
key: The stored key of the counter, which is a digest if the key is a secret.
user_id: The user. NULL: an anonymous request.
tier: The tier of the user, with a policy.
address: The address of the client, or its network; see audit_address.
host: The host of the request.
method: The method of the request.
path: The path of the request without the query, up to 500 characters.
node: The name of the proxy.
region: The region of the proxy, if its configuration has one.
also: The other limits that the request matched, charged or not, as pairs of prefix and key. NULL: none.
id: A unique number.
$$);
CREATE TABLE IF NOT EXISTS rate_limit_metrics ( granularity   text NOT NULL, time          timestamptz NOT NULL, user_id       text NOT NULL DEFAULT '', key_id        bigint NOT NULL DEFAULT 0, prefix        text NOT NULL DEFAULT '',
	limit_name    text NOT NULL DEFAULT '', endpoint      text NOT NULL DEFAULT '', region        text NOT NULL DEFAULT '', requests      bigint NOT NULL DEFAULT 0, admitted      bigint NOT NULL DEFAULT 0,
	limited       bigint NOT NULL DEFAULT 0, blocked       bigint NOT NULL DEFAULT 0, rejected      bigint NOT NULL DEFAULT 0, overloaded    bigint NOT NULL DEFAULT 0, failed        bigint NOT NULL DEFAULT 0,
	shadow        bigint NOT NULL DEFAULT 0, charged       bigint NOT NULL DEFAULT 0, settled       bigint NOT NULL DEFAULT 0, from_memory   bigint NOT NULL DEFAULT 0, from_lease    bigint NOT NULL DEFAULT 0,
	from_database bigint NOT NULL DEFAULT 0, last_request  timestamptz NOT NULL, latency       bigint[] NOT NULL DEFAULT '{}', CONSTRAINT granularity_must_be_minute_hour_or_day CHECK (granularity IN ('minute', 'hour', 'day'))
) PARTITION BY LIST (granularity);
CREATE UNIQUE INDEX IF NOT EXISTS rate_limit_metrics_key ON rate_limit_metrics (user_id, time, key_id, prefix, limit_name, endpoint, region, granularity);
CREATE INDEX IF NOT EXISTS rate_limit_metrics_time ON rate_limit_metrics USING brin (time) WITH (pages_per_range = 16, autosummarize = on);
CALL rate_limit_describe('rate_limit_metrics', $$
Sums of requests by user, API key, deciding limit and endpoint, in a minute, an hour or a day, over all proxies of a region. Usage and invoices are computed from them.
granularity: minute, hour or day: each request counts in all three.
time: The start of the minute, hour or day, in UTC.
user_id: The user; empty: anonymous requests; (other): users beyond the first 10,000 combinations of a proxy in a minute.
key_id: The id of the API key; 0: none, or (other).
prefix: As in rate_limit_audit.
limit_name: The name of the limit of the rule; empty: a limit in a configuration, or none.
endpoint: The name of the route in the configuration, otherwise the paths of the matching rule or zone, but never the path of a request; (other): as for users.
region: The region of the proxies, if their configuration has one.
requests: All requests: the next six columns together. A request counts once, for the limit that refused it or has the least remaining.
admitted: Requests that passed.
limited: Requests that a limit refused.
blocked: Requests that a ban or a block rule refused.
rejected: Requests that were refused because of their API key, their path or their body.
overloaded: Requests that were not decided in time while others were.
failed: Other requests without a decision, whether they passed or not.
shadow: Refusals that shadow rules would have made. Their requests count in the other columns, too.
charged: Units that this limit charged for requests that passed, including requests counted under another limit.
settled: The actual cost of these requests, once their responses end; equal to charged if the limit has no settle.
from_memory: Limited requests that a proxy refused from memory, without the database.
from_lease: Admitted requests that a lease decided, without the database.
from_database: Requests that the database decided, because neither the memory of the proxy nor a lease could.
last_request: The time of the last request.
latency: The numbers of decisions by duration, in buckets; see rate_limit_percentile.
$$);
DO $$
DECLARE
	part text;
BEGIN
	FOREACH part IN ARRAY ARRAY['minute', 'hour', 'day'] LOOP
		CONTINUE WHEN to_regclass('rate_limit_metrics_' || part) IS NOT NULL;
		EXECUTE format('CREATE TABLE rate_limit_metrics_%1$s (LIKE rate_limit_metrics INCLUDING ALL) %2$s;
			ALTER TABLE rate_limit_metrics ATTACH PARTITION rate_limit_metrics_%1$s FOR VALUES IN (%1$L);
			COMMENT ON TABLE rate_limit_metrics_%1$s IS ''The %1$ss of rate_limit_metrics, in UTC.''',
			part, CASE WHEN part <> 'day' THEN 'PARTITION BY RANGE (time)' END);
	END LOOP;
	EXECUTE (SELECT format('ALTER TABLE rate_limit_metrics_day REPLICA IDENTITY USING INDEX %I', c.relname) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE i.indrelid = 'rate_limit_metrics_day'::regclass AND i.indisunique);
END $$;
CREATE TABLE IF NOT EXISTS rate_limit_writers ( writer  text PRIMARY KEY, node    text NOT NULL, region  text, batch   bigint NOT NULL, written bigint NOT NULL DEFAULT 0, dropped bigint NOT NULL DEFAULT 0,
	seen    timestamptz NOT NULL DEFAULT now() );
CALL rate_limit_describe('rate_limit_writers', $$
The processes that write the history, and the progress of each. A row that was not renewed for 30 days is deleted.
writer: A random name of the process.
node: The name of the proxy.
region: The region of the proxy, if its configuration has one.
batch: The number of the last written batch, so that a batch that is sent again after a failure is not written twice.
written: The number of decisions that the process has written to rate_limit_audit.
dropped: The number of decisions that the process could not write, because the database was slow or down for too long.
seen: The time of the last batch.
$$);
CREATE TABLE IF NOT EXISTS rate_limit_retention ( what   text PRIMARY KEY, keep   interval NOT NULL, set_by text, set_at timestamptz NOT NULL DEFAULT now(), upkeep_at timestamptz,
	CONSTRAINT what_must_be_audit_or_metrics_of_minute_hour_or_day CHECK (what IN ('audit', 'metrics_minute', 'metrics_hour', 'metrics_day')), CONSTRAINT keep_must_be_1_day_or_more CHECK (keep >= interval '1 day') );
INSERT INTO rate_limit_retention (what, keep) VALUES ('audit', '90 days'), ('metrics_minute', '7 days'), ('metrics_hour', '90 days'), ('metrics_day', '7 years') ON CONFLICT DO NOTHING;
CALL rate_limit_describe('rate_limit_retention', $$
The retention of each part of the history. Upkeep deletes older rows. A proxy with a retention in its configuration writes it when it starts.
what: The part of the history: audit, metrics_minute, metrics_hour or metrics_day.
keep: The retention. A part without a row is kept for ever.
set_by: The proxy or the role that set the retention. NULL: it is the default.
set_at: When the retention was set.
upkeep_at: When upkeep last ran.
$$);
`

const historyUpkeep = `
CREATE OR REPLACE FUNCTION rate_limit_cutoff(what text, now timestamptz) RETURNS timestamptz
	LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
BEGIN
	RETURN (SELECT CASE WHEN rate_limit_owns_history() THEN $2 ELSE least($2, pg_catalog.now()) END - least(r.keep, interval '1000 years') FROM rate_limit_retention r WHERE r.what = $1);
END $$;
COMMENT ON FUNCTION rate_limit_cutoff IS 'The time before which a part of the history (what) is past its retention at a time (now). NULL: the '
	'part is kept for ever. For a role other than the owner of the tables, now is at most the current time.';
CREATE OR REPLACE FUNCTION rate_limit_holders(relation oid) RETURNS text
	LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT string_agg(DISTINCT coalesce('pid ' || l.pid, 'a prepared transaction'), ', ') FROM pg_locks l
	WHERE l.locktype = 'relation' AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AND l.relation = $1 AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
$$;
COMMENT ON FUNCTION rate_limit_holders IS 'The other sessions that have a lock on a table, as text. NULL: none.';
CREATE OR REPLACE FUNCTION rate_limit_drop_expired(now timestamptz DEFAULT now())
	RETURNS TABLE (name text, held_by text) LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '100ms' AS $$
DECLARE
	expired record;
	busy jsonb := '{}';
BEGIN
	IF NOT pg_try_advisory_xact_lock(1885827693, ('rate_limit_audit'::regclass::oid::bigint - 2147483648)::int) THEN
		RETURN;
	END IF;
	FOR expired IN SELECT 'rate_limit_' || k.what AS parent, p.name, rate_limit_holders(p.id) AS held_by FROM unnest('{audit,metrics_minute,metrics_hour}'::text[]) AS k(what)
		CROSS JOIN LATERAL rate_limit_partitions('rate_limit_' || k.what) p
		WHERE p.ends <= rate_limit_cutoff(k.what, $1)
	LOOP
		name := expired.name;
		held_by := expired.held_by;
		IF held_by IS NULL THEN
			BEGIN
				IF NOT busy ? expired.parent THEN
					EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', expired.parent::regclass);
					busy := busy || jsonb_build_object(expired.parent, NULL);
				END IF;
			EXCEPTION WHEN lock_not_available THEN
				busy := busy || jsonb_build_object(expired.parent, coalesce(rate_limit_holders(expired.parent::regclass), 'another session') || ' by way of ' || expired.parent);
			END;
			held_by := busy ->> expired.parent;
		END IF;
		IF held_by IS NULL THEN
			BEGIN
				EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE NOWAIT', expired.name);
				EXECUTE format('DROP TABLE %s', expired.name);
			EXCEPTION WHEN lock_not_available THEN
				held_by := 'another session';
			WHEN dependent_objects_still_exist THEN
				held_by := SQLERRM;
			WHEN undefined_table THEN
				CONTINUE;
			END;
		END IF;
		RETURN NEXT;
	END LOOP;
END $$;
COMMENT ON FUNCTION rate_limit_drop_expired IS 'Drops the partitions of rate_limit_audit and of the minutes and hours of rate_limit_metrics that are '
	'past their retention. A partition in use stays, and held_by names the sessions that use it. Writers wait for up to 100 ms. One of the proxies, or pg_cron, runs this function about once a minute.';
CREATE OR REPLACE FUNCTION rate_limit_upkeep(now timestamptz DEFAULT now(), pause interval DEFAULT '0') RETURNS TABLE (what text, name text, rows bigint) LANGUAGE plpgsql SECURITY DEFINER
	SET lock_timeout = '1s' AS $$
DECLARE
	today CONSTANT date := CASE WHEN rate_limit_owns_history() THEN $1 ELSE pg_catalog.now() END;
	parent text;
	column_name text;
	before timestamptz;
BEGIN
	IF NOT pg_try_advisory_xact_lock(1885827693, ('rate_limit_audit'::regclass::oid::bigint - 2147483648)::int) OR EXISTS (SELECT FROM rate_limit_retention r WHERE r.upkeep_at > pg_catalog.now() - pause
			AND r.upkeep_at <= pg_catalog.now() AND pause > '0') THEN
		what := 'busy';
		RETURN NEXT;
		RETURN;
	END IF;
	FOREACH parent IN ARRAY '{rate_limit_audit,rate_limit_metrics_minute,rate_limit_metrics_hour}'::text[]
	LOOP
		FOR ahead IN 0..7 LOOP
			BEGIN
				name := rate_limit_make_partition(today + ahead, parent);
			EXCEPTION WHEN lock_not_available THEN
				what := 'skipped';
				name := parent;
				RETURN NEXT;
				EXIT;
			END;
			IF name IS NOT NULL THEN
				what := 'made';
				RETURN NEXT;
			END IF;
		END LOOP;
	END LOOP;
	what := 'deleted';
	FOR name, column_name, before IN VALUES ('metrics_day', 'time', date_trunc('day', rate_limit_cutoff('metrics_day', $1))), ('writers', 'seen', least($1, pg_catalog.now()) - interval '30 days')
	LOOP
		EXECUTE format('DELETE FROM rate_limit_%1$s d WHERE d.ctid = ANY (ARRAY(SELECT o.ctid
			FROM rate_limit_%1$s o WHERE o.%2$s < $1 LIMIT 20000 FOR UPDATE SKIP LOCKED))', name, column_name)
			USING before;
		GET DIAGNOSTICS rows = ROW_COUNT;
		RETURN NEXT;
	END LOOP;
	UPDATE rate_limit_retention r SET upkeep_at = pg_catalog.now() FROM (SELECT f.what FROM rate_limit_retention f FOR UPDATE SKIP LOCKED) AS free WHERE r.what = free.what;
END $$;
COMMENT ON FUNCTION rate_limit_upkeep IS 'Creates the partitions of rate_limit_audit and of the minutes and hours of rate_limit_metrics for today '
	'and the next 7 days. Deletes up to 20,000 rows of days of rate_limit_metrics past their retention, and old rows of rate_limit_writers. Waits for a lock for at most 1 s. Returns a row for each effect. what '
	'is made (a partition), deleted (rows), skipped (a table that another session has locked), or busy (another process runs the function, or ran it within the pause). For a role that does not own the '
	'tables, now is at most the current time. One of the proxies, or pg_cron, runs this about once a minute.';
`

const policyAnswers = `
CREATE OR REPLACE FUNCTION rate_limit_used_by(user_id text, key_id bigint DEFAULT NULL) RETURNS TABLE (rule text, limit_name text, key text, algorithm text, used numeric, held numeric,
	quota numeric, percent numeric, resets_at timestamptz, unit text, level text)
	LANGUAGE plpgsql STABLE ROWS 10 AS $$
DECLARE
	ids text[] := ARRAY[NULL::text]; -- the user and those above it
	keys text[] := ARRAY[coalesce((SELECT k.counted_as FROM rate_limit_api_keys k WHERE k.id = $2)::text, $2::text)]; -- the keys of their counters
BEGIN
	IF $2 IS NULL THEN
		SELECT array_agg(l.user_id ORDER BY l.place), array_agg(rate_limit_counter_key(l.counts) ORDER BY l.place) INTO ids, keys FROM rate_limit_lineage($1) l;
	END IF;
	RETURN QUERY SELECT u.*, nullif(ids[array_position(keys, d.part)], $1) FROM rate_limit_used u JOIN rate_limit_rules r ON r.name = u.rule JOIN LATERAL rate_limit_counted(r.count_by, u.key) d
			ON d.dimension = CASE WHEN $2 IS NULL THEN 'user' ELSE 'key' END AND d.part = ANY (keys)
		WHERE u.key = ANY (rate_limit_key_forms(keys))
		ORDER BY array_position(keys, d.part), u.rule, u.limit_name, u.key;
END $$;
COMMENT ON FUNCTION rate_limit_used_by IS 'The rows of rate_limit_used that count a user, or one of its API keys, and then the rows that count the users above it, which level names.';
CREATE OR REPLACE FUNCTION rate_limit_recent(user_id text, key_id bigint DEFAULT NULL) RETURNS TABLE (today bigint, this_month bigint, limited bigint, blocked bigint, rejected bigint,
	last_request timestamptz, resets timestamptz) LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
	IF has_table_privilege(to_regclass('rate_limit_metrics'), 'SELECT') THEN
		RETURN QUERY SELECT coalesce(sum(n.requests) FILTER (WHERE n.time >= date_trunc('day', now(), 'UTC')), 0)::bigint, coalesce(sum(n.requests), 0)::bigint,
			coalesce(sum(n.limited), 0)::bigint, coalesce(sum(n.blocked), 0)::bigint,
			coalesce(sum(n.rejected), 0)::bigint,
			(SELECT max(m.last_request) FROM rate_limit_metrics m WHERE m.granularity = 'day' AND m.user_id = $1 AND ($2 IS NULL OR m.key_id = $2)),
			(SELECT max(u.resets_at) FROM rate_limit_used_by($1, $2) u)
		FROM rate_limit_metrics n WHERE n.granularity = 'day' AND n.user_id = $1 AND n.time >= date_trunc('month', now(), 'UTC') AND ($2 IS NULL OR n.key_id = $2)
		HAVING EXISTS (SELECT FROM rate_limit_metrics m WHERE m.granularity = 'day' AND m.user_id > '');
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_recent IS 'The recent requests of a user or of one of its API keys: of today and of this month in UTC. limited, blocked and rejected are refused requests of this month. resets is the latest '
	'resets_at in rate_limit_used_by. No row: no usage was recorded, or the role may not read it.';
CREATE OR REPLACE VIEW rate_limit_tier_states WITH (security_invoker) AS SELECT t.tier, t.rank, (SELECT count(*) FROM rate_limit_users u WHERE u.tier = t.tier) AS users,
		(SELECT count(*) FROM rate_limit_api_keys k WHERE k.tier = t.tier) AS keys, ARRAY(SELECT r.name FROM rate_limit_rules r WHERE t.tier = ANY (r.tiers) ORDER BY r.name) AS rules, t.comment,
		CASE WHEN n.users = 1 THEN '{no rule limits its user}' WHEN n.users > 1 THEN ARRAY[format('no rule limits its %s users', n.users)] END AS problems FROM rate_limit_tiers t LEFT JOIN rate_limit_unlimited() n ON n.tier = t.tier;
CALL rate_limit_describe('rate_limit_tier_states', $$
The tiers with their users, API keys and rules.
users: The number of users on the tier.
keys: The number of API keys with this tier of their own.
rules: The rules for the tier, including rules that are for other tiers, too.
problems: That no rule limits its users, as in rate_limit_unlimited.
$$);
CREATE OR REPLACE VIEW rate_limit_user_states WITH (security_invoker) AS SELECT u.user_id, u.tier, CASE WHEN EXISTS (SELECT FROM rate_limit_lineage(u.user_id) l
		JOIN rate_limit_bans b ON b.user_id = l.user_id AND b.until > now()) THEN 'banned' WHEN EXISTS (SELECT FROM rate_limit_overrides o WHERE o.user_id = u.user_id AND o.events = 0
			AND o.valid @> now()) THEN 'blocked' ELSE 'active' END AS state, u.parent FROM rate_limit_users u;
CALL rate_limit_describe('rate_limit_user_states', $$
The users and their states.
state: banned, also as one of the users above it is; blocked: an override of 0 refuses the user; or active.
$$);
CREATE OR REPLACE VIEW rate_limit_key_states WITH (security_invoker) AS SELECT k.id, k.hint, k.name, k.user_id, k.tier, CASE WHEN k.revoked_at <= now() THEN 'revoked' WHEN k.expires_at <= now() THEN 'expired'
		WHEN EXISTS (SELECT FROM rate_limit_bans b WHERE b.key_id = k.id AND b.until > now()) OR EXISTS (SELECT FROM rate_limit_lineage(k.user_id) l JOIN rate_limit_bans b ON b.user_id = l.user_id AND b.until > now())
			THEN 'banned' ELSE 'valid' END AS state, k.expires_at, k.revoked_at, k.revoked_by, k.replaced_by, k.created_at FROM rate_limit_api_keys k;
CALL rate_limit_describe('rate_limit_key_states', $$
The API keys, without their digests, and their states.
state: valid, expired, revoked, or banned: the key, its user, or a user above it is banned.
$$);
CREATE OR REPLACE VIEW rate_limit_rule_states WITH (security_invoker) AS SELECT r.name, r.action, r.family, r.priority, r.mode, r.mode <> 'off' AND r.valid @> now() AS in_force,
		r.tiers, r.hosts, r.paths, r.methods, r.networks, nullif(r.valid, '(,)') AS valid, CASE r.action WHEN 'limit' THEN r.count_by END AS count_by, nullif(r.without_header, 'share') AS without_header, (SELECT string_agg(concat_ws(' ', l.name,
			coalesce(rate_limit_decimal(l.events, l.unit)::text, 'unlimited') || coalesce(' ' || nullif(l.unit, 'requests'), '') || coalesce('/' || coalesce(rate_limit_span(l.per), l.calendar), ''), l.algorithm, l.time_zone,
			'burst ' || l.burst, CASE WHEN l.durable AND l.unit = 'requests' THEN 'durable' WHEN NOT l.durable AND l.unit <> 'requests' THEN 'durable off' END, nullif(l.on_exceed, 'refuse'),
			'output ' || l.output, 'notify ' || array_to_string(l.notify, ','), CASE WHEN NOT l.fields THEN 'fields off' END), '; ' ORDER BY l.per NULLS LAST, l.name) FROM rate_limit_rule_limits l WHERE l.rule = r.name) AS limits,
		nullif(r.cost, 1) AS cost, r.settle, r.status, r.message, r.retry_after, r.comment, (SELECT array_agg(w.warning ORDER BY w.warning) FROM rate_limit_rule_warnings w WHERE w.rule = r.name) AS problems, r.counted_as FROM rate_limit_rules r
	ORDER BY CASE r.action WHEN 'exempt' THEN 1 WHEN 'block' THEN 2 ELSE 3 END, r.priority DESC, r.name;
CALL rate_limit_describe('rate_limit_rule_states', $$
The rules in the order in which proxies try them, with their limits as text. Defaults are NULL.
in_force: Whether the rule applies now.
limits: Each limit as text: its name, events and window, algorithm, and all values that are not defaults.
problems: The warnings of rate_limit_rule_warnings.
$$);
CREATE OR REPLACE VIEW rate_limit_changed WITH (security_invoker) AS SELECT c.seq, c.at, c.by, c.kind, c.ref, k.id AS key_id, c.before, c.after, CASE WHEN c.ref IS NULL AND num_nonnulls(c.before, c.after) = 0
			THEN '{"more than 1,000 rows, or all"}' WHEN num_nonnulls(c.before, c.after) = 0 THEN '{changed}' WHEN num_nonnulls(c.before, c.after) = 1 THEN ARRAY[CASE WHEN c.before IS NULL THEN 'created' ELSE 'deleted' END] || ARRAY(
				SELECT format('%s: %s', name, coalesce(m.after, m.before) ->> name) FROM unnest('{rule,limit_name,events,burst,valid}'::text[]) AS name WHERE c.kind = 'override' AND nullif(coalesce(c.after, c.before) ->> name, '(,)') IS NOT NULL)
			ELSE ARRAY(SELECT format('%s: %s -> %s', a.key, m.before -> a.key, a.value) FROM jsonb_each(m.after) a WHERE a.value IS DISTINCT FROM m.before -> a.key AND a.key <> 'updated_at' ORDER BY a.key COLLATE "C") END AS what,
		CASE WHEN c.ref IS NULL THEN 'all' WHEN k.id IS NOT NULL THEN CASE c.kind WHEN 'key' THEN '' ELSE 'key/' END || k.id ELSE regexp_replace(c.ref, '(^|/)([0-9a-f]{12})[0-9a-f]{52}$', '\1\2...') END AS which FROM rate_limit_changes c,
		LATERAL (SELECT (coalesce(c.after, c.before) ->> CASE c.kind WHEN 'key' THEN 'id' ELSE 'key_id' END)::bigint AS id) k, LATERAL (SELECT CASE c.kind WHEN 'override' THEN (SELECT l.unit FROM rate_limit_rule_limits l
			WHERE (l.rule, l.name) = (coalesce(c.after, c.before) ->> 'rule', coalesce(c.after, c.before) ->> 'limit_name')) END AS unit) u, LATERAL (SELECT rate_limit_policy_amount(c.before, coalesce(c.before ->> 'unit', u.unit) = 'money',
			false) AS before, rate_limit_policy_amount(c.after, coalesce(c.after ->> 'unit', u.unit) = 'money', false) AS after) m;
CALL rate_limit_describe('rate_limit_changed', $$
The changes of the policy as text.
key_id: The id of the API key that was changed, or that has the changed override or ban. NULL: another change.
which: ref for display: all for NULL, and for an API key its id, or the start of its digest if the row is too old to have the id.
what: created or deleted, with the rule, limit and amounts of an override; changed; or the columns that differ. An amount of money is a decimal number.
$$);
`

const policyChanges = `
CREATE TABLE IF NOT EXISTS rate_limit_changes ( seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, xid    xid8 NOT NULL DEFAULT pg_current_xact_id(), kind   text NOT NULL, ref    text, at     timestamptz NOT NULL DEFAULT now(),
	by     text NOT NULL, before jsonb, after  jsonb, CONSTRAINT kind_must_be_what_a_table_holds CHECK (kind IN ('tier', 'user', 'key', 'rule', 'limit', 'override', 'ban', 'price')) );
CREATE INDEX IF NOT EXISTS rate_limit_changes_xid ON rate_limit_changes (xid);
CREATE INDEX IF NOT EXISTS rate_limit_changes_at ON rate_limit_changes (at);
CALL rate_limit_describe('rate_limit_changes', $$
The changes of the policy in the last 30 days. Triggers write them, and proxies poll them.
seq: The order in which the rows were written. A row may become visible later than rows of other transactions with higher numbers.
xid: The transaction. Proxies use it to find the changes that became visible since their last poll.
kind: The kind of the changed row: tier, user, key, rule, limit, override, ban or price.
ref: The changed row: the name of a tier or rule, rule/limit, the user, or the hexadecimal digest of a
	key. For an override or a ban, its target: tier/..., user/..., key/<digest> or network/.... NULL: all
	rows, because one statement changed more than 1,000 rows or emptied the table.
at: When the transaction started.
by: The role that made the change, and in parentheses the person in the setting rate_limit.person, if any.
before: The row before the change. NULL: it is new.
after: The row after the change. NULL: it was deleted.
$$);
`

const policyCommands = `
CREATE OR REPLACE FUNCTION rate_limit_delete_tier(tier text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	uses text;
BEGIN
	IF $1 = 'anonymous' THEN
		RAISE EXCEPTION 'tier: %: must stay: it is the tier of requests without a user', to_json($1) USING ERRCODE = 'check_violation';
	END IF;
	PERFORM FROM rate_limit_tiers t WHERE t.tier = $1 FOR UPDATE;
	SELECT string_agg(u.what, ', ' ORDER BY u.place, u.what) INTO uses FROM ( SELECT u.place, u.n || ' ' || u.what || CASE u.n WHEN 1 THEN '' ELSE 's' END AS what
		FROM (VALUES (1, 'user', (SELECT count(*) FROM rate_limit_users o WHERE o.tier = $1)), (2, 'API key', (SELECT count(*) FROM rate_limit_api_keys o WHERE o.tier = $1)),
			(3, 'override', (SELECT count(*) FROM rate_limit_overrides o WHERE o.tier = $1))) AS u(place, what, n) WHERE u.n > 0
		UNION ALL SELECT 4, format('the rule "%s"', r.name) FROM rate_limit_rules r WHERE $1 = ANY (r.tiers)) AS u;
	IF uses IS NOT NULL THEN
		RAISE EXCEPTION 'tier: %: is used by %: change or delete these first, or see: caddy pg-ratelimit tiers rename', to_json($1), uses USING ERRCODE = 'foreign_key_violation';
	END IF;
	DELETE FROM rate_limit_tiers t WHERE t.tier = $1;
	RETURN FOUND;
END $$;
COMMENT ON FUNCTION rate_limit_delete_tier IS 'Deletes an unused tier, and returns whether it existed. It fails if the tier is used.';
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
		RAISE EXCEPTION 'kind: %: must be rule or tier', to_json(kind) USING ERRCODE = 'invalid_parameter_value';
	END IF;
	RETURN FOUND;
EXCEPTION WHEN integrity_constraint_violation THEN
	GET STACKED DIAGNOSTICS fault = CONSTRAINT_NAME, message = MESSAGE_TEXT;
	RAISE check_violation USING MESSAGE = CASE SQLSTATE WHEN '23505' THEN format('%s: %s: must be a name that no %1$s has', $1, to_json($3))
		ELSE rate_limit_fault(fault, message, NULL, jsonb_build_object('tier', $3, 'name', $3)) END;
END $$;
COMMENT ON FUNCTION rate_limit_rename IS 'Renames a rule or a tier in all rows that refer to it. kind is rule or tier. Returns whether it existed. A renamed rule keeps its counters.';
CREATE OR REPLACE FUNCTION rate_limit_revoke_key(key_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	UPDATE rate_limit_api_keys k SET revoked_at = now(), revoked_by = session_user WHERE k.id = $1 AND (k.revoked_at IS NULL OR k.revoked_at > now());
	RETURN FOUND;
END $$;
COMMENT ON FUNCTION rate_limit_revoke_key IS 'Revokes an API key now. Returns false if the key was revoked before, or does not exist.';
CREATE OR REPLACE FUNCTION rate_limit_rotate_key(key_id bigint, grace interval, digest bytea, hint text DEFAULT NULL) RETURNS TABLE (id bigint, replaces bigint, replaced_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
	old rate_limit_api_keys;
BEGIN
	SELECT k.* INTO old FROM rate_limit_api_keys k WHERE k.id = $1 FOR UPDATE;
	IF ($2 BETWEEN '0' AND '36525 days') IS NOT TRUE THEN
		RAISE EXCEPTION 'grace: %: must be 0 to 36525 days', to_json($2) USING ERRCODE = 'invalid_parameter_value';
	ELSIF (octet_length($3) = 32) IS NOT TRUE THEN
		RAISE invalid_parameter_value USING MESSAGE = 'digest: must be a sha256 of 32 bytes';
	ELSIF old.id IS NULL THEN
		RAISE EXCEPTION 'key: %: must be the id of an API key', $1 USING ERRCODE = 'no_data_found';
	ELSIF old.replaced_by IS NOT NULL THEN
		RAISE EXCEPTION 'key: %: was already replaced by the key %', $1, old.replaced_by USING ERRCODE = 'object_not_in_prerequisite_state';
	ELSIF least(old.revoked_at, old.expires_at) <= now() THEN
		RAISE EXCEPTION 'key: %: is %: to make a new key, run: caddy pg-ratelimit keys create', $1, CASE WHEN old.revoked_at <= now() THEN 'revoked' ELSE 'expired' END
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	INSERT INTO rate_limit_api_keys AS k (digest, hint, user_id, name, expires_at, tier, counted_as) VALUES ($3, $4, old.user_id, old.name, old.expires_at, old.tier, coalesce(old.counted_as, old.id))
		RETURNING k.id, $1 INTO id, replaces;
	INSERT INTO rate_limit_overrides (rule, limit_name, key_id, events, burst, valid, reason) SELECT o.rule, o.limit_name, rate_limit_rotate_key.id, o.events, o.burst, o.valid, o.reason
			FROM rate_limit_overrides o WHERE o.key_id = $1;
	INSERT INTO rate_limit_bans (key_id, until, reason, banned_at, banned_by) SELECT rate_limit_rotate_key.id, b.until, b.reason, b.banned_at, b.banned_by FROM rate_limit_bans b WHERE b.key_id = $1;
	UPDATE rate_limit_api_keys k SET revoked_at = least(k.revoked_at, now() + $2), revoked_by = session_user, replaced_by = rate_limit_rotate_key.id WHERE k.id = $1
		RETURNING least(k.revoked_at, k.expires_at) INTO replaced_at;
	RETURN NEXT;
END $$;
COMMENT ON FUNCTION rate_limit_rotate_key IS 'Creates an API key in place of a valid one, with its name, tier, end, counters, overrides and bans. '
	'The old key ends after the grace. digest is the SHA-256 of the new key, and hint its first characters.';
`

const policyDocument = `
CREATE OR REPLACE VIEW rate_limit_policy_columns WITH (security_invoker) AS SELECT s.place, s.section, s.relation, a.attnum AS position, a.attname::text AS name,
		format_type(a.atttypid, a.atttypmod) AS type, d.value AS default_value, array_position(s.keys, a.attname::text) AS key, a.attnotnull AND d.value IS NULL OR a.attname = 'events' AS needed,
		EXISTS (SELECT FROM pg_constraint c WHERE c.conrelid = a.attrelid AND c.contype = 'f' AND c.conkey = ARRAY[a.attnum] AND c.confrelid = 'rate_limit_api_keys'::regclass) AS is_reference, col_description(a.attrelid, a.attnum) AS description
	FROM (VALUES (1, 'tiers', 'rate_limit_tiers'::regclass, '{tier}'::text[]), (2, 'users', 'rate_limit_users', '{user_id}'), (3, 'keys', 'rate_limit_api_keys', '{digest}'),
		(4, 'rules', 'rate_limit_rules', '{name}'), (5, 'limits', 'rate_limit_rule_limits', '{rule,name}'), (6, 'overrides', 'rate_limit_overrides', '{rule,limit_name,tier,user_id,key_id,valid}'),
		(7, 'prices', 'rate_limit_prices', '{model,valid}') ) AS s(place, section, relation, keys) JOIN pg_attribute a ON a.attrelid = s.relation AND a.attnum > 0 AND NOT a.attisdropped
	LEFT JOIN LATERAL (SELECT pg_get_expr(v.adbin, v.adrelid) FROM pg_attrdef v WHERE (v.adrelid, v.adnum) = (a.attrelid, a.attnum)) AS d(value) ON true
	WHERE a.attidentity = '' AND a.attgenerated = '' AND a.attname NOT IN ('parent_level', 'level') AND (d.value IS NULL OR d.value NOT IN ('now()', 'SESSION_USER'));
CALL rate_limit_describe('rate_limit_policy_columns', $$
The columns of the policy that a document has. Values that the server fills are left out.
place: The order of the tables. Rows refer only to rows of earlier tables.
section: The name of the list of rows in a document.
relation: The table.
position: The place of the column in the table.
name: The column.
type: The type of the column.
default_value: The default of the column, as SQL. NULL: none.
key: The place among the columns that name a row. NULL: the column is not one of them.
needed: Whether each row of a document must have the column.
is_reference: Whether the column is the id of an API key. A document has the digest of the key in its place.
description: The meaning of the column.
$$);
CREATE OR REPLACE FUNCTION rate_limit_policy_rows(section text, list jsonb DEFAULT NULL) RETURNS TABLE (name text, key jsonb, at tid, document jsonb) LANGUAGE plpgsql STABLE
SET timezone = 'UTC' SET datestyle = 'ISO' SET bytea_output = 'hex' AS $$
DECLARE
	s record;
BEGIN
	SELECT c.relation, string_agg(format('%L, %s', c.name, CASE WHEN c.is_reference AND list IS NOT NULL THEN format('CASE WHEN o ->> %1$L ~* ''^\\x[0-9a-f]{64}$'' THEN lower(o ->> %1$L)
				WHEN o ->> %1$L IS NOT NULL THEN ''\x'' END', c.name)
			WHEN c.is_reference THEN format('(SELECT k.digest FROM rate_limit_api_keys k WHERE k.id = t.%I)', c.name)
			WHEN c.name = 'counted_as' AND list IS NOT NULL THEN format('nullif(coalesce(t.counted_as, (SELECT r.counted_as FROM %1$s r WHERE r.%2$I = t.%2$I)), t.%2$I)', c.relation,
				CASE c.section WHEN 'users' THEN 'user_id' ELSE 'name' END)
			WHEN c.type = 'interval' THEN format('rate_limit_span(t.%I)', c.name)
			WHEN c.name = 'events' THEN 'coalesce(to_jsonb(t.events), ''"unlimited"'')'
			WHEN c.default_value IS NULL THEN format('t.%I', c.name)
			ELSE format('nullif(t.%I, %s)', c.name, c.default_value) END), ', ') AS fields,
		string_agg(format(CASE c.key WHEN 1 THEN '%s' WHEN 2 THEN '''/'' || (%s)' ELSE ''' %2$s '' || (%1$s)' END, format(CASE WHEN c.is_reference OR c.type = 'bytea'
				THEN 'regexp_replace(d.document ->> %L, ''^(\\x[0-9a-f]{12})[0-9a-f]{52}$|^.*$'', ''\1...'')'
				ELSE 'd.document ->> %L' END, c.name), c.name), ', ' ORDER BY c.key)
			FILTER (WHERE c.key > 0) AS shown,
		string_agg(format('d.document -> %L', c.name), ', ' ORDER BY c.key) FILTER (WHERE c.key > 0) AS keys,
		array_agg(c.name) FILTER (WHERE c.is_reference) AS refs
	INTO s FROM rate_limit_policy_columns c WHERE c.section = rate_limit_policy_rows.section GROUP BY c.relation;
	RETURN QUERY EXECUTE format('SELECT concat(%s), jsonb_build_array(%s), d.at, d.document
		FROM (SELECT jsonb_strip_nulls(jsonb_build_object(%s)) AS document, %s OFFSET 0) AS d',
		s.shown, s.keys, s.fields, CASE WHEN list IS NULL THEN format('t.ctid AS at FROM %s t', s.relation) ELSE format('NULL::tid AS at FROM jsonb_array_elements($1) AS o
			CROSS JOIN LATERAL jsonb_populate_record(NULL::%s, rate_limit_policy_values(o, $2)) t', s.relation) END)
		USING list, s.refs;
END $$;
COMMENT ON FUNCTION rate_limit_policy_rows IS 'The rows of a section of the policy, or of list as the tables would have them: the name for messages, '
	'the fields that identify the row (key), its place in the table (at; NULL in a list), and the fields that do not have their defaults.';
CREATE OR REPLACE FUNCTION rate_limit_policy_values(fields jsonb, refs text[]) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN CASE WHEN fields ->> 'events' = 'unlimited' THEN fields - 'events' ELSE fields END
	- coalesce(refs, '{}') || CASE WHEN fields ->> 'time_zone' <> 'UTC' THEN jsonb_build_object('time_zone', coalesce(rate_limit_known_zone(fields ->> 'time_zone'), fields ->> 'time_zone')) ELSE '{}' END
	|| CASE WHEN fields ? 'model' THEN jsonb_build_object('model', rate_limit_model(fields ->> 'model')) ELSE '{}' END;
COMMENT ON FUNCTION rate_limit_policy_values IS 'The values of a row of a document, without its references to API keys, without links of time zones, and with the name of a model as prices have it.';
CREATE OR REPLACE FUNCTION rate_limit_money_limits(lists jsonb DEFAULT '{}') RETURNS text[]
	LANGUAGE sql STABLE AS $$
	SELECT coalesce(array_agg(concat(l.rule, '/', l.name)), '{}') FROM ( SELECT o.* FROM jsonb_to_recordset(lists -> 'limits') AS o(rule text, name text, unit text)
		UNION ALL SELECT t.rule, t.name, t.unit FROM rate_limit_rule_limits t WHERE NOT EXISTS (SELECT FROM jsonb_to_recordset(lists -> 'limits') AS o(rule text, name text)
				WHERE (o.rule, o.name) = (t.rule, t.name))) AS l WHERE l.unit = 'money'
$$;
COMMENT ON FUNCTION rate_limit_money_limits IS 'The limits in money, as RULE/LIMIT, with those that the lists of a document have.';
CREATE OR REPLACE FUNCTION rate_limit_policy(users boolean DEFAULT false) RETURNS jsonb
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	money CONSTANT text[] := rate_limit_money_limits();
	limits CONSTANT jsonb := (SELECT jsonb_object_agg(l.rule, jsonb_build_object('limits', l.list)) FROM ( SELECT r.document ->> 'rule' AS rule, jsonb_agg(rate_limit_policy_amount(r.document - 'rule',
			r.document ->> 'unit' = 'money', false) ORDER BY r.key) AS list
		FROM rate_limit_policy_rows('limits') r GROUP BY 1) AS l);
BEGIN
	RETURN (SELECT jsonb_object_agg(s.section, coalesce(( SELECT jsonb_agg(rate_limit_policy_amount(r.document, s.section = 'overrides' AND concat(
				r.document ->> 'rule', '/', r.document ->> 'limit_name') = ANY (money), false)
				|| CASE s.section WHEN 'rules'
				THEN coalesce(limits -> r.name, '{}') ELSE '{}' END ORDER BY r.key)
			FROM rate_limit_policy_rows(s.section) r WHERE users OR s.section <> 'overrides' OR r.document ? 'tier'), '[]'))
		FROM (SELECT DISTINCT section FROM rate_limit_policy_columns) AS s
		WHERE s.section <> 'limits' AND (users OR s.section NOT IN ('users', 'keys')));
END $$;
COMMENT ON FUNCTION rate_limit_policy IS 'The policy as a document: tiers, rules with their limits, overrides for tiers, and prices. users adds the '
	'users, the digests of their API keys, and their overrides. A field that has its default is left out.';
CREATE OR REPLACE FUNCTION rate_limit_policy_lists(policy jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
	sections CONSTANT text[] := '{tiers,users,keys,rules,overrides,prices}';
	money text[];
	lists jsonb := policy;
	result jsonb := '{}';
	rows jsonb;
	part record;
	item record;
	fault text;
BEGIN
	SELECT concat(f.key, CASE WHEN f.key = ANY (sections) THEN ': must be a list of rows, each with fields' ELSE ': unknown: must be one of ' || array_to_string(sections, ', ') END) INTO fault
		FROM jsonb_each(CASE jsonb_typeof(policy) WHEN 'object' THEN policy ELSE '{"policy": 1}' END) AS f
		WHERE f.key <> ALL (sections) OR jsonb_typeof(f.value) <> 'array' OR f.value @? '$[*] ? (@.type() != "object")' OR f.key = 'rules' AND f.value @?
				'strict $[*].limits ? (@.type() != "array" || @[*].type() != "object")'
		ORDER BY f.key = ANY (sections), f.key LIMIT 1;
	IF fault IS NULL AND policy ? 'rules' THEN
		SELECT policy || jsonb_build_object('rules', coalesce(jsonb_agg(r - 'limits'), '[]'), 'limits', (SELECT coalesce(jsonb_agg(l || jsonb_build_object('rule', r -> 'name')), '[]')
				FROM jsonb_array_elements(policy -> 'rules') AS r, jsonb_array_elements(r -> 'limits') AS l))
			INTO lists FROM jsonb_array_elements(policy -> 'rules') AS r;
	END IF;
	IF fault IS NULL THEN
		money := rate_limit_money_limits(lists);
		SELECT format('%s "%s/%s": events: %s: must be 0 to 9007199254.740992 with at most 6 decimals', left(s.section, -1), o ->> 'rule', o ->> s.name, o -> 'events') INTO fault
			FROM (VALUES ('limits', 'name'), ('overrides', 'limit_name')) AS s(section, name), jsonb_array_elements(lists -> s.section) AS o
			WHERE concat(o ->> 'rule', '/', o ->> s.name) = ANY (money) AND o ->> 'events' <> 'unlimited' AND NOT rate_limit_is_money(o ->> 'events') LIMIT 1;
	END IF;
	IF fault IS NULL THEN
		SELECT lists || coalesce(jsonb_object_agg(c.section, c.list), '{}') INTO lists FROM ( SELECT s.section, (SELECT coalesce(jsonb_agg(rate_limit_policy_amount(o,
				concat(o ->> 'rule', '/', o ->> s.name) = ANY (money), true)), '[]')
				FROM jsonb_array_elements(lists -> s.section) AS o) AS list
			FROM (VALUES ('limits', 'name'), ('overrides', 'limit_name')) AS s(section, name)
			WHERE lists ? s.section) AS c;
	END IF;
	FOR part IN SELECT section, left(section, -1) AS kind, relation, jsonb_object_agg(name, type) AS types, array_agg(name) FILTER (WHERE needed) AS needed,
			array_agg(name ORDER BY key) FILTER (WHERE key <= 2) AS keys,
			string_agg(name, ', ' ORDER BY position) || CASE section WHEN 'rules' THEN ', limits' ELSE '' END AS known
		FROM rate_limit_policy_columns WHERE lists ? section AND fault IS NULL
		GROUP BY place, section, relation ORDER BY place
	LOOP
		EXIT WHEN fault IS NOT NULL;
		SELECT d.o, f.key, f.value, CASE WHEN part.types -> f.key IS NULL THEN format('unknown: must be one of %s', part.known)
				WHEN f.value IS NULL THEN 'missing: must be given' WHEN part.types ->> f.key LIKE '%[]' THEN 'must be a list, as in [a, b]'
				ELSE 'must be one value' END AS wrong
			INTO item FROM jsonb_array_elements(lists -> part.section) WITH ORDINALITY AS d(o, place) CROSS JOIN LATERAL ( SELECT e.key, e.value FROM jsonb_each(d.o) e WHERE part.types -> e.key IS NULL
					OR jsonb_typeof(e.value) <> 'null' AND (part.types ->> e.key LIKE '%[]') <> (jsonb_typeof(e.value) = 'array') OR jsonb_typeof(e.value) = 'object'
				UNION ALL SELECT n, NULL FROM unnest(part.needed) AS n WHERE d.o ->> n IS NULL) AS f(key, value)
			ORDER BY d.place LIMIT 1;
		IF NOT FOUND THEN
			BEGIN
				SELECT coalesce(jsonb_agg(to_jsonb(r)), '[]') INTO rows FROM rate_limit_policy_rows(part.section, lists -> part.section) r;
				result := result || jsonb_build_object(part.section, rows);
				SELECT format('%s "%s": must be given once', part.kind, min(r.name)) INTO fault FROM jsonb_to_recordset(rows) AS r(name text, key jsonb) GROUP BY r.key HAVING count(*) > 1 LIMIT 1;
				CONTINUE;
			EXCEPTION WHEN data_exception THEN
				FOR item IN SELECT d.o, f.key, f.value, 'must be of the type ' || (part.types ->> f.key) AS wrong FROM jsonb_array_elements(lists -> part.section) AS d(o), jsonb_each(d.o) f
					WHERE f.value <> '"unlimited"' OR f.key <> 'events'
				LOOP
					BEGIN
						EXECUTE format('SELECT FROM jsonb_populate_record(NULL::%s,
							jsonb_build_object($1, $2)) t WHERE t.%I IS NULL', part.relation, item.key)
							USING item.key, item.value;
					EXCEPTION WHEN data_exception THEN
						EXIT;
					END;
				END LOOP;
			END;
		END IF;
		fault := format('%s "%s": %s: %s%s', part.kind, (SELECT string_agg(CASE part.types ->> k WHEN 'bytea' THEN coalesce(substring(item.o ->> k FROM '^\\x[0-9a-f]{12}'), '') || '...'
				ELSE item.o ->> k END, '/') FROM unnest(part.keys) AS k), item.key,
			CASE WHEN item.wrong LIKE 'must%' AND item.key NOT IN ('digest', 'hint', 'key_id', 'replaced_by') THEN concat(item.value, ': ') END, item.wrong);
	END LOOP;
	IF fault IS NOT NULL THEN
		RAISE invalid_parameter_value USING MESSAGE = fault;
	END IF;
	RETURN result;
END $$;
COMMENT ON FUNCTION rate_limit_policy_lists IS 'The rows of rate_limit_policy_rows of a document, by section. It fails for unknown or missing fields, values of a wrong type, and rows given twice.';
CREATE OR REPLACE FUNCTION rate_limit_fault(fault text, message text, detail text, fields jsonb) RETURNS text
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	part CONSTANT text[] := regexp_match(fault, '^(.*?)_((?:must|needs)_.*)$');
	taken CONSTANT text[] := regexp_match(detail, '^Key \(family, priority\)=\((.*), (.*?)\) already exists');
BEGIN
	IF fault LIKE 'exactly\_one\_of\_per%' AND fields ->> 'algorithm' = 'in_flight' THEN
		RETURN 'algorithm: "in_flight": must be an algorithm with a window; in_flight limits concurrent requests';
	ELSIF taken IS NOT NULL THEN
		RETURN format('priority: %s: must differ from the priority of the rule %s, which is in the same family', taken[2], (SELECT to_json(r.name) FROM rate_limit_rules r WHERE r.family = taken[1]
				AND r.priority::text = taken[2]));
	ELSIF part IS NULL THEN
		RETURN message;
	ELSIF fields ->> part[1] IS NULL OR part[1] IN ('digest', 'hint') THEN
		RETURN concat( CASE WHEN NOT fields ? 'limit_name' THEN substring(message FROM '^the override \d+') || ': ' END, (SELECT string_agg(format('%s: %s', f.key, f.value), ', ' ORDER BY f.key) || ': '
			FROM jsonb_each(nullif(fields, 'null')) AS f
			WHERE f.key NOT IN ('digest', 'hint', 'key_id') AND f.key IN (SELECT a.attname FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)
				WHERE c.contype = 'c' AND c.conname = fault)),
			replace(fault, '_', ' '), CASE WHEN detail LIKE 'Key %' AND detail NOT LIKE '%digest%'
			THEN ': ' || detail END);
	END IF;
	RETURN concat(part[1], ': ', fields -> part[1], ': ', replace(split_part(part[2], 'rate_limit', 1), '_', ' '), substring(part[2] FROM 'rate_limit.*'), CASE WHEN part[2] LIKE '%rate_limit_tiers' THEN
			(SELECT ', which has ' || string_agg(t.tier, ', ' ORDER BY t.rank, t.tier) FROM rate_limit_tiers t)
			WHEN part[1] IN ('algorithm', 'unit') THEN
			(SELECT ': ' || string_agg(name[1], ', ') FROM pg_constraint, regexp_matches(pg_get_constraintdef(oid), '''([a-z_]+)''', 'g') AS name
				WHERE conname = fault AND conrelid = 'rate_limit_rule_limits'::regclass) END);
END $$;
COMMENT ON FUNCTION rate_limit_fault IS 'The error of a constraint for display: the field, its value, and the permitted values; or the message, if the name of the constraint does not describe them.';
CREATE OR REPLACE FUNCTION rate_limit_policy_write(section text, how text, list jsonb) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	chosen CONSTANT jsonb := jsonb_path_query_array(list, CASE how WHEN 'insert' THEN '$[*] ? (@.at == null)' WHEN 'delete' THEN '$[*] ? (@.document == null)'
			ELSE '$[*] ? (@.at != null && @.document != null)' END::jsonpath);
	many CONSTANT int := coalesce(jsonb_array_length(chosen), 0);
	s record;
	fault text;
	message text;
	detail text;
BEGIN
	IF many = 0 THEN
		RETURN;
	END IF;
	SELECT c.relation, string_agg(quote_ident(c.name), ', ' ORDER BY c.position) AS names, string_agg(format(CASE WHEN c.is_reference THEN 'CASE WHEN d.document ? %1$L
				THEN coalesce((SELECT k.id FROM rate_limit_api_keys k
					WHERE k.digest = (d.document ->> %1$L)::bytea), 0) END'
			WHEN c.default_value IS NULL THEN 't.%I' ELSE 'coalesce(t.%I, %s)' END, c.name, c.default_value),
			', ' ORDER BY c.position) AS row
		INTO s FROM rate_limit_policy_columns c WHERE c.section = rate_limit_policy_write.section AND CASE how WHEN 'insert' THEN NOT (c.is_reference AND c.section = 'keys' OR c.name = 'parent')
				ELSE c.key IS NULL END GROUP BY c.relation;
	BEGIN
		EXECUTE format(CASE how WHEN 'insert' THEN 'INSERT INTO %s (%s) SELECT %s FROM %s, %s' WHEN 'update' THEN 'UPDATE %s x SET (%s) = ROW(%s) FROM %s, %s WHERE x.ctid = d.at'
			WHEN 'clear' THEN 'UPDATE %s x SET ' || CASE section WHEN 'users' THEN 'parent = NULL' ELSE 'events = NULL, burst = NULL' END || ' FROM %4$s WHERE x.ctid = d.at'
			ELSE 'DELETE FROM %s x USING %4$s WHERE x.ctid = d.at' END, s.relation, s.names, s.row,
			'jsonb_to_recordset($1) AS d(at tid, document jsonb)',
			format('jsonb_populate_record(NULL::%s, rate_limit_policy_values(d.document, $2)) t', s.relation))
			USING chosen, (SELECT array_agg(c.name) FROM rate_limit_policy_columns c WHERE c.section = rate_limit_policy_write.section AND c.is_reference);
	EXCEPTION WHEN integrity_constraint_violation OR invalid_parameter_value THEN
		GET STACKED DIAGNOSTICS fault = CONSTRAINT_NAME, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
		IF many > 1 THEN
			PERFORM rate_limit_policy_write(section, how, (SELECT jsonb_agg(d.o) FROM jsonb_array_elements(chosen) WITH ORDINALITY AS d(o, place)
				WHERE (d.place > many / 2) = second)) FROM unnest('{f,t}'::boolean[]) AS second;
		END IF;
		RAISE EXCEPTION '% "%": %', left(section, -1), chosen -> 0 ->> 'name', rate_limit_fault(fault, message, detail, chosen -> 0 -> 'document') USING ERRCODE = 'check_violation';
	END;
END $$;
COMMENT ON FUNCTION rate_limit_policy_write IS 'Inserts, updates or deletes rows of a section for rate_limit_apply, or clears the amounts of overrides and the parents of users. The error is about the row that the server refuses.';
CREATE OR REPLACE FUNCTION rate_limit_apply(policy jsonb, prune boolean DEFAULT false, dry_run boolean DEFAULT false)
RETURNS TABLE (section text, name text, what text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
	lists CONSTANT jsonb := rate_limit_policy_lists(policy);
	money CONSTANT text[] := rate_limit_money_limits(); -- before
	money_now CONSTANT text[] := rate_limit_money_limits(jsonb_build_object('limits', jsonb_path_query_array(lists, '$.limits[*].document')));
	plan jsonb := '{}'; -- Maps a section to its rows that differ, for rate_limit_policy_write.
	part record;
	found jsonb;
	defaults jsonb;
	unknown text[];
	fault text;
	detail text;
BEGIN
	LOCK TABLE rate_limit_tiers, rate_limit_users, rate_limit_api_keys, rate_limit_rules, rate_limit_rule_limits, rate_limit_overrides, rate_limit_prices IN SHARE ROW EXCLUSIVE MODE;
	FOR part IN SELECT c.section, string_agg(format('%L, %s', c.name, coalesce(c.default_value, 'NULL')), ', ') AS defaults FROM rate_limit_policy_columns c WHERE lists ? c.section
		GROUP BY c.place, c.section ORDER BY c.place LOOP
		EXECUTE format('SELECT jsonb_build_object(%s)', part.defaults) INTO defaults;
		SELECT jsonb_agg(jsonb_build_object('at', h.at, 'have', h.document, 'document', w.document, 'name', coalesce(w.name, h.name)) ORDER BY coalesce(w.key, h.key)) INTO found
			FROM rate_limit_policy_rows(part.section) h FULL JOIN jsonb_to_recordset(lists -> part.section) AS w(name text, key jsonb, document jsonb) ON w.key = h.key
			WHERE h.key IS NULL OR h.document <> w.document OR w.key IS NULL AND prune AND h.key <> '["anonymous"]' AND (part.section <> 'overrides'
				OR (lists ? 'users' OR NOT h.document ? 'user_id') AND (lists ? 'keys' OR NOT h.document ? 'key_id'));
		CONTINUE WHEN found IS NULL;
		plan := plan || jsonb_build_object(part.section, found);
		RETURN QUERY SELECT part.section, d.name, f.* FROM (SELECT d.name, rate_limit_policy_amount(d.have, d.have ->> 'rule' || '/' ||
					coalesce(d.have ->> 'limit_name', d.have ->> 'name') = ANY (money), false) AS have,
				rate_limit_policy_amount(d.document, d.document ->> 'rule' || '/' || coalesce(d.document ->> 'limit_name', d.document ->> 'name') = ANY (money_now), false) AS document
				FROM jsonb_to_recordset(found) AS d(have jsonb, document jsonb, name text)) AS d
			CROSS JOIN LATERAL (SELECT 'created', NULL::jsonb, d.document WHERE d.have IS NULL UNION ALL SELECT 'deleted', d.have, NULL WHERE d.document IS NULL
				UNION ALL SELECT e.key, nullif((defaults || d.have) -> e.key, 'null'), nullif(e.value, 'null') FROM jsonb_each(defaults || d.document) AS e WHERE e.value <> (defaults || d.have) -> e.key) AS f;
	END LOOP;
	IF plan = '{}' THEN
		RETURN;
	END IF;
	BEGIN
		unknown := ARRAY(SELECT concat(r.name, '/', t) FROM rate_limit_rules r, unnest(r.tiers) AS t WHERE t NOT IN (SELECT tier FROM rate_limit_tiers));
		SET CONSTRAINTS ALL DEFERRED;
		PERFORM rate_limit_policy_write('overrides', 'delete', plan -> 'overrides');
		PERFORM rate_limit_policy_write('limits', 'delete', plan -> 'limits');
		PERFORM rate_limit_policy_write('rules', 'delete', plan -> 'rules');
		PERFORM rate_limit_policy_write('overrides', 'clear', plan -> 'overrides') WHERE plan ? 'limits';
		PERFORM rate_limit_policy_write('users', 'clear', jsonb_path_query_array(plan -> 'users', '$[*] ? (@.have.parent != null)'));
		PERFORM rate_limit_policy_write('users', 'delete', (SELECT jsonb_agg(jsonb_build_object('at', h.at, 'name', d.name, 'document', NULL)) FROM rate_limit_policy_rows('users') h
				JOIN jsonb_to_recordset(plan -> 'users') AS d(name text, document jsonb) USING (name)
				WHERE d.document IS NULL)) WHERE plan -> 'users' @? '$[*] ? (@.document == null)';
		FOR part IN SELECT DISTINCT c.place, c.section FROM rate_limit_policy_columns c WHERE plan ? c.section ORDER BY 1 LOOP
			PERFORM rate_limit_policy_write(part.section, 'insert', plan -> part.section);
			found := plan -> part.section;
			IF part.section IN ('keys', 'overrides') OR part.section = 'users' AND found @? '$[*] ? (@.document.parent != null || @.have.parent != null)' THEN
				SELECT jsonb_agg(to_jsonb(w) || jsonb_build_object('at', h.at)) INTO found FROM rate_limit_policy_rows(part.section) h
					JOIN jsonb_to_recordset(lists -> part.section) AS w(name text, key jsonb, document jsonb) ON w.key = h.key WHERE h.document <> w.document;
			END IF;
			PERFORM rate_limit_policy_write(part.section, 'update', found);
		END LOOP;
		PERFORM rate_limit_policy_write(s, 'delete', plan -> s) FROM unnest('{keys,tiers,prices}'::text[]) AS s;
		SELECT format('rule "%s": %s', f.name, f.fault) INTO fault FROM ( SELECT r.name, format('tiers: "%s": must be in the section tiers, or in rate_limit_tiers', t)
			FROM rate_limit_rules r, unnest(r.tiers) AS t
			WHERE t NOT IN (SELECT tier FROM rate_limit_tiers) AND concat(r.name, '/', t) <> ALL (unknown)
			UNION ALL SELECT r.name, format('priority: %s: must differ from the priority of the rule "%s", which is in the same family', r.priority, o.name)
			FROM rate_limit_rules r JOIN rate_limit_rules o ON (o.family, o.priority) = (r.family, r.priority) AND o.name > r.name
			UNION ALL SELECT r.name, format('counted_as: "%s": must be a name by which no other rule counts: the rule "%s" counts by it', r.counts, o.name)
			FROM (SELECT x.name, coalesce(x.counted_as, x.name) AS counts FROM rate_limit_rules x) AS r JOIN rate_limit_rules o ON coalesce(o.counted_as, o.name) = r.counts AND o.name > r.name)
			AS f(name, fault) ORDER BY f.fault DESC, f.name LIMIT 1;
		IF fault IS NOT NULL THEN
			RAISE foreign_key_violation USING MESSAGE = fault;
		END IF;
		SET CONSTRAINTS ALL IMMEDIATE;
		SET CONSTRAINTS ALL DEFERRED;
		IF dry_run THEN
			RAISE SQLSTATE 'RL000';
		END IF;
	EXCEPTION WHEN SQLSTATE 'RL000' THEN
		NULL; -- The exception undoes the changes of the block. The rows of RETURN QUERY stay.
	WHEN integrity_constraint_violation THEN
		GET STACKED DIAGNOSTICS fault = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
		RAISE check_violation USING MESSAGE = concat('rule "' || substring(detail FROM '^The rule is ''(.*)''\.$') || '": ', fault);
	END;
END $$;
COMMENT ON FUNCTION rate_limit_apply IS 'Changes the policy to match a document of rate_limit_policy, and returns the differences: a new or '
	'deleted row, or a changed field of an existing row. A field that the document lacks gets its default, except counted_as of a rule. Rows that the document lacks stay; prune deletes such rows of the sections that the document has. '
	'dry_run checks everything and changes nothing.';
`

const policyEnd = `
CREATE OR REPLACE FUNCTION rate_limit_policy_version() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 10';
COMMENT ON FUNCTION rate_limit_policy_version IS 'The version of the tables of the policy. The last command of the migration creates it.';
`

// policyVersion is the number in policy/end.sql.
const policyVersion = "10"

const policyFunctions = `
CREATE OR REPLACE FUNCTION rate_limit_set(relation regclass, keys text[], fields jsonb, reset text[]) RETURNS text
	LANGUAGE plpgsql AS $$
DECLARE
	inputs CONSTANT jsonb := jsonb_strip_nulls(fields);
	names CONSTANT text[] := ARRAY(SELECT jsonb_object_keys(inputs));
	resets CONSTANT text[] := ARRAY(SELECT n FROM unnest(reset) AS n WHERE NOT inputs ? n);
	others CONSTANT text[] := ARRAY(SELECT n FROM jsonb_object_keys(fields) AS n WHERE n <> ALL (keys));
	sets text := format('%1$I = x.%1$I', keys[1]);
	same CONSTANT text := (SELECT string_agg(format('x.%1$I IS NOT DISTINCT FROM t.%1$I', k), ' AND ') FROM unnest(keys) AS k);
	list CONSTANT text := (SELECT string_agg(quote_ident(n), ', ') FROM unnest(names) AS n);
	total bigint;
	fault text;
	message text;
	detail text;
BEGIN
	SELECT format('reset: %s: must be one of %s', to_json(n), array_to_string(others, ', ')) INTO fault FROM unnest(reset) AS n WHERE n <> ALL (others) OR n IS NULL LIMIT 1;
	SELECT coalesce(fault, format('%s: must not be both given and reset', n)) INTO fault FROM unnest(reset) AS n WHERE inputs ? n OR fault IS NOT NULL LIMIT 1;
	IF names = '{}' THEN
		fault := keys[1] || ': must be given';
	END IF;
	IF fault IS NOT NULL THEN
		RAISE invalid_parameter_value USING MESSAGE = fault;
	END IF;
	SELECT coalesce(string_agg(format(CASE WHEN n = ANY (resets) THEN '%1$I = DEFAULT' ELSE '%1$I = t.%1$I' END, n), ', '), sets) INTO sets FROM unnest(others) AS n WHERE n = ANY (names || resets);
	FOR attempt IN 1..2 LOOP -- Another session may insert the row between the two statements.
		EXECUTE format('UPDATE %1$s x SET %2$s FROM jsonb_populate_record(NULL::%1$s, $1) t WHERE %3$s', relation, sets, same) USING inputs;
		GET DIAGNOSTICS total = ROW_COUNT;
		IF total > 0 THEN
			RETURN 'changed';
		END IF;
		EXECUTE format('INSERT INTO %1$s (%2$s) SELECT %2$s FROM jsonb_populate_record(NULL::%1$s, $1)
			ON CONFLICT (%3$s) DO NOTHING', relation, list,
			(SELECT string_agg(quote_ident(k), ', ') FROM unnest(keys) AS k)) USING inputs;
		GET DIAGNOSTICS total = ROW_COUNT;
		IF total > 0 THEN
			RETURN 'created';
		END IF;
	END LOOP;
	RETURN 'kept'; -- Another session deletes the row that INSERT finds.
EXCEPTION WHEN integrity_constraint_violation OR invalid_parameter_value THEN
	GET STACKED DIAGNOSTICS fault = CONSTRAINT_NAME, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, sets = COLUMN_NAME;
	message := CASE WHEN SQLSTATE <> '23502' THEN rate_limit_fault(fault, message, detail, inputs) WHEN sets = ANY (resets) THEN sets || ': must have a value, and has no default'
		ELSE sets || ': must be given for a new row' END;
	RAISE check_violation USING MESSAGE = message;
END $$;
COMMENT ON FUNCTION rate_limit_set IS 'Creates or changes a row, which the columns keys identify. A field that is null is not set. A column in reset gets its default. Returns created, changed, or kept: another session deletes the row.';
CREATE OR REPLACE FUNCTION rate_limit_tier(tier text, rank bigint DEFAULT NULL, comment text DEFAULT NULL, reset text[] DEFAULT NULL) RETURNS text LANGUAGE sql
	AS $$ SELECT rate_limit_set('rate_limit_tiers', '{tier}', to_jsonb(f), reset)
		FROM (SELECT tier, rank, comment) AS f $$;
COMMENT ON FUNCTION rate_limit_tier IS 'Creates or changes a tier.';
CREATE OR REPLACE FUNCTION rate_limit_user(user_id text, tier text DEFAULT NULL, tier_until timestamptz DEFAULT NULL, period_start date DEFAULT NULL, time_zone text DEFAULT NULL,
	comment text DEFAULT NULL, overrides text[] DEFAULT NULL, reset text[] DEFAULT NULL, parent text DEFAULT NULL) RETURNS text
	LANGUAGE sql AS $$ SELECT rate_limit_set_overrides(rate_limit_set('rate_limit_users', '{user_id}',
			to_jsonb(f), reset), overrides, user_id)
		FROM (SELECT user_id, tier, tier_until, period_start, time_zone, comment, parent) AS f $$;
COMMENT ON FUNCTION rate_limit_user IS 'Creates or changes a user. A new user needs a tier. overrides are as in free/per_hour=5000, free/per_hour=unlimited and free/per_hour.burst=20. Without a value, as in free/per_hour=, the '
	'override is deleted.';
CREATE OR REPLACE FUNCTION rate_limit_key(id bigint, tier text DEFAULT NULL, name text DEFAULT NULL, expires_at timestamptz DEFAULT NULL, overrides text[] DEFAULT NULL, reset text[] DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM rate_limit_api_keys k WHERE k.id = $1 FOR UPDATE;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'key: %: must be the id of an API key', $1 USING ERRCODE = 'no_data_found';
	END IF;
	RETURN rate_limit_set_overrides(rate_limit_set('rate_limit_api_keys', '{id}', jsonb_build_object('id', $1, 'tier', $2, 'name', $3, 'expires_at', $4, 'revoked_at', NULL, 'revoked_by', NULL),
		CASE WHEN 'revoked_at' = ANY ($6) THEN $6 || '{revoked_by}' ELSE $6 END), $5, NULL, $1);
END $$;
COMMENT ON FUNCTION rate_limit_key IS 'Changes an API key. overrides are as in rate_limit_user. reset => ''{revoked_at}'' restores a revoked key.';
CREATE OR REPLACE FUNCTION rate_limit_limit(rule text, name text, amount text DEFAULT NULL, algorithm text DEFAULT NULL, burst bigint DEFAULT NULL, durable boolean DEFAULT NULL,
	on_exceed text DEFAULT NULL, output bigint DEFAULT NULL, fields boolean DEFAULT NULL, reset text[] DEFAULT NULL, notify bigint[] DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	part CONSTANT text[] := regexp_match($3, '^\s*(unlimited|\d{1,18}|\d+[.]\d+)(?:\s+([a-z_]+))?\s*/\s*' || '(?:(in_flight)|1?(day|d|week|w|month|mo|year|y) calendar(?: (\S+))?'
		|| '|((?:\d{0,8}(?:w|d|h|m|s|ms|us))+))\s*$');
	old rate_limit_rule_limits;
	law text;
BEGIN
	IF $3 IS NOT NULL AND part IS NULL THEN
		RAISE EXCEPTION 'amount of %/%: %: must be EVENTS/WINDOW, as in 100/10s, 5000 tokens/1m, 0.50 money/24h, unlimited/1h, 10000/1mo calendar Europe/Berlin or 5/in_flight', $1, $2, to_json($3)
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	SELECT l.* INTO old FROM rate_limit_rule_limits l WHERE (l.rule, l.name) = ($1, $2) FOR UPDATE;
	SELECT CASE WHEN part[3] IS NOT NULL THEN 'in_flight' WHEN part[4] IS NOT NULL THEN 'fixed_window' ELSE coalesce($4, CASE WHEN old.per IS NOT NULL THEN old.algorithm END, CASE
			WHEN part IS NOT NULL THEN
			coalesce((SELECT min(l.algorithm) FROM rate_limit_rule_limits l WHERE l.rule = $1 AND l.per IS NOT NULL HAVING count(DISTINCT l.algorithm) = 1), 'sliding_window') END) END INTO law;
	RETURN rate_limit_set('rate_limit_rule_limits', '{rule,name}', jsonb_build_object('rule', $1, 'name', $2, 'events', CASE WHEN part[1] <> 'unlimited'
			THEN rate_limit_units(part[1], coalesce(part[2], old.unit)) END,
		'calendar', CASE left(part[4], 1) WHEN 'd' THEN 'day' WHEN 'w' THEN 'week' WHEN 'm' THEN 'month' WHEN 'y' THEN 'year' END, 'time_zone', part[5],
		'per', regexp_replace(part[6], '^(?=[a-z])', '1')::interval, 'algorithm', law, 'burst', $5,
		'durable', $6, 'on_exceed', $7, 'unit', part[2], 'output', $8, 'fields', $9, 'notify', $11),
		$10 || CASE WHEN part IS NOT NULL THEN ARRAY(SELECT f FROM unnest(ARRAY['events', 'calendar', 'time_zone', 'per', 'burst'], ARRAY[nullif(part[1], 'unlimited'), part[4], part[5], part[6],
				coalesce($5::text, part[6])]) AS n(f, v) WHERE v IS NULL AND f <> ALL (coalesce($10, '{}'))) END);
END $$;
COMMENT ON FUNCTION rate_limit_limit IS 'Creates or changes a limit of a rule, with any window. The amount is as in 50/10s, 5000 tokens/1m, 50 money/1mo calendar, unlimited/1h, 10000/1mo calendar Europe/Berlin or 5/in_flight.';
CREATE OR REPLACE FUNCTION rate_limit_override(rule text, limit_name text, amount text DEFAULT NULL, tier text DEFAULT NULL, user_id text DEFAULT NULL, key_id bigint DEFAULT NULL, burst bigint DEFAULT NULL,
	until timestamptz DEFAULT NULL, reason text DEFAULT NULL, reset text[] DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	own rate_limit_rule_limits;
	old rate_limit_overrides;
	span tstzrange := '(,)';
BEGIN
	IF $3 !~ '^(unlimited|\d{1,18}|\d+[.]\d+)$' THEN
		RAISE EXCEPTION 'amount of %/%: %: must be a number, or unlimited', $1, $2, to_json($3) USING ERRCODE = 'invalid_parameter_value';
	ELSIF $8 <= now() THEN
		RAISE EXCEPTION 'until: %: must be in the future of the server''s clock', to_json($8) USING ERRCODE = 'invalid_parameter_value';
	END IF;
	SELECT l.* INTO own FROM rate_limit_rule_limits l WHERE (l.rule, l.name) = ($1, $2) FOR SHARE;
	IF NOT FOUND THEN
		RAISE EXCEPTION '%/%: no such %', $1, $2, (SELECT coalesce('limit: must be one of ' || string_agg( l.rule || '/' || l.name, ', ' ORDER BY l.rule, l.name), 'rule, or it has no limit')
			FROM rate_limit_rule_limits l WHERE l.rule = $1) USING ERRCODE = 'no_data_found';
	END IF;
	SELECT o.* INTO old FROM rate_limit_overrides o WHERE (o.rule, o.limit_name) = ($1, $2) AND (o.tier, o.user_id, o.key_id) IS NOT DISTINCT FROM ($4, $5, $6)
		AND CASE WHEN $8 IS NULL THEN o.valid = '(,)' ELSE o.valid @> now() AND NOT upper_inf(o.valid) END
		ORDER BY lower(o.valid) DESC NULLS LAST LIMIT 1 FOR UPDATE;
	IF $8 IS NOT NULL THEN
		span := tstzrange(CASE WHEN old.id IS NULL THEN now() ELSE lower(old.valid) END, $8);
		UPDATE rate_limit_overrides o SET valid = span WHERE o.id = old.id;
	END IF;
	RETURN rate_limit_set('rate_limit_overrides', '{rule,limit_name,tier,user_id,key_id,valid}', jsonb_build_object('rule', $1, 'limit_name', $2, 'tier', $4, 'user_id', $5, 'key_id', $6, 'valid', span,
			'events', CASE WHEN $3 IS NULL AND old.id IS NULL THEN own.events
			WHEN $3 <> 'unlimited' THEN rate_limit_units($3, own.unit) END,
			'burst', $7, 'reason', $9),
		CASE WHEN $3 = 'unlimited' THEN '{events}' ELSE '{}' END::text[] || $10);
END $$;
COMMENT ON FUNCTION rate_limit_override IS 'Sets another amount of a limit for a tier, a user or an API key, for ever or until a time. The amount '
	'is a number, or unlimited. A new override without an amount gets the amount of the limit, and keeps that amount when the rule changes.';
CREATE OR REPLACE FUNCTION rate_limit_ban(network cidr DEFAULT NULL, user_id text DEFAULT NULL, key_id bigint DEFAULT NULL, until timestamptz DEFAULT NULL, reason text DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	IF num_nonnulls($1, $2, $3) <> 1 THEN
		RAISE invalid_parameter_value USING MESSAGE = 'network, user_id, key_id: exactly one of them must be given';
	ELSIF $4 <= now() THEN
		RAISE EXCEPTION 'until: %: must be in the future of the server''s clock', to_json($4) USING ERRCODE = 'invalid_parameter_value';
	ELSIF family($1) = 6 AND masklen($1) = 128 THEN
		RAISE NOTICE 'network: %: is one of 2^64 addresses of its client: ban % to ban the client', $1, network(set_masklen($1::inet, 64));
	END IF;
	RETURN rate_limit_set('rate_limit_bans', ARRAY[CASE WHEN $1 IS NOT NULL THEN 'network' WHEN $2 IS NOT NULL
		THEN 'user_id' ELSE 'key_id' END], jsonb_build_object('network', $1, 'user_id', $2, 'key_id', $3, 'until', $4, 'reason', $5, 'banned_at', NULL, 'banned_by', NULL),
		array_remove(ARRAY['banned_at', 'banned_by', CASE WHEN $4 IS NULL THEN 'until' END, CASE WHEN $5 IS NULL THEN 'reason' END], NULL));
END $$;
COMMENT ON FUNCTION rate_limit_ban IS 'Bans a network, a user or an API key, for ever or until a time. An existing ban gets this end and this reason.';
CREATE OR REPLACE FUNCTION rate_limit_unban(network inet DEFAULT NULL, user_id text DEFAULT NULL,
	key_id bigint DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_bans b WHERE b.user_id = $2 OR b.key_id = $3 OR rate_limit_network(b.network) = rate_limit_network($1);
	RETURN FOUND;
END $$;
COMMENT ON FUNCTION rate_limit_unban IS 'Lifts a ban, and returns whether there was one. An IPv4 network is equal to its IPv6 form.';
CREATE OR REPLACE FUNCTION rate_limit_delete_rule(name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_rules r WHERE r.name = $1;
	RETURN FOUND;
END $$;
COMMENT ON FUNCTION rate_limit_delete_rule IS 'Deletes a rule with its limits and overrides, and returns whether it existed.';
CREATE OR REPLACE FUNCTION rate_limit_delete_limit(rule text, name text) RETURNS boolean
	LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_rule_limits l WHERE l.rule = $1 AND l.name = $2;
	RETURN FOUND;
END $$;
COMMENT ON FUNCTION rate_limit_delete_limit IS 'Deletes a limit with its overrides, and returns whether it existed. A rule with the action limit must keep at least one limit.';
CREATE OR REPLACE FUNCTION rate_limit_price(model text, input numeric DEFAULT NULL, output numeric DEFAULT NULL, cache_read numeric DEFAULT NULL, cache_write numeric DEFAULT NULL,
	above bigint DEFAULT NULL, above_input numeric DEFAULT NULL, above_output numeric DEFAULT NULL, above_cache_read numeric DEFAULT NULL, above_cache_write numeric DEFAULT NULL,
	max_output bigint DEFAULT NULL, valid tstzrange DEFAULT '(,)', comment text DEFAULT NULL, reset text[] DEFAULT NULL) RETURNS text LANGUAGE sql
	AS $$ SELECT rate_limit_set('rate_limit_prices', '{model,valid}', to_jsonb(f), reset)
		FROM (SELECT rate_limit_model(model) AS model, coalesce(valid, '(,)') AS valid, input, output, cache_read, cache_write, above, above_input, above_output, above_cache_read, above_cache_write,
			max_output, comment) AS f $$;
COMMENT ON FUNCTION rate_limit_price IS 'Creates or changes the price of a model that holds in a time: for a million tokens of each kind. A new price needs input and output.';
CREATE OR REPLACE FUNCTION rate_limit_delete_price(model text, valid tstzrange DEFAULT NULL) RETURNS boolean
	LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_prices p WHERE p.model = rate_limit_model($1) AND ($2 IS NULL OR p.valid = $2);
	RETURN FOUND;
END $$;
COMMENT ON FUNCTION rate_limit_delete_price IS 'Deletes the prices of a model, or the one that holds in a time, and returns whether there was one.';
CREATE OR REPLACE FUNCTION rate_limit_delete_user(user_id text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM rate_limit_refuse_parent($1);
	DELETE FROM rate_limit_users u WHERE u.user_id = $1;
	RETURN FOUND;
END $$;
COMMENT ON FUNCTION rate_limit_delete_user IS 'Deletes a user with its API keys, their bans, and its overrides, and returns whether it existed. It fails if the user is the parent of others.';
CREATE OR REPLACE FUNCTION rate_limit_delete_override(rule text, limit_name text, tier text DEFAULT NULL,
	user_id text DEFAULT NULL, key_id bigint DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_overrides o WHERE o.rule = $1 AND o.limit_name = $2 AND (o.tier = $3 OR o.user_id = $4 OR o.key_id = $5);
	RETURN FOUND;
END $$;
COMMENT ON FUNCTION rate_limit_delete_override IS 'Deletes the overrides of a limit for a tier, a user or an API key, and returns whether there was one.';
`

const policyLists = `
CREATE OR REPLACE FUNCTION rate_limit_each_matches(list text[], pattern text) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN array_ndims(list) = 1 AND (SELECT coalesce(bool_and(coalesce(item ~ pattern, false)), false)
	FROM unnest(list) AS item);
COMMENT ON FUNCTION rate_limit_each_matches IS 'Whether a list is non-empty and one-dimensional, and every element matches a regular expression. NULL: the list is NULL.';
CREATE OR REPLACE FUNCTION rate_limit_each_once(list text[]) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN NOT EXISTS (SELECT FROM unnest(list) AS item, unnest(string_to_array(item, '|')) AS name
	GROUP BY lower(name) HAVING count(*) > 1);
COMMENT ON FUNCTION rate_limit_each_once IS 'Whether all alternatives of all elements differ in more than case.';
CREATE OR REPLACE FUNCTION rate_limit_span(span interval) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE WHEN date_trunc('month', span) <> '0' THEN extract(year FROM span) * 12 + extract(month FROM span) || ' months'
	ELSE (SELECT trunc(extract(epoch FROM span) / u.seconds) || u.name FROM (VALUES (3600, 'h'), (60, 'm'), (1, 's'), (0.001, 'ms'), (0.000001, 'us')) AS u(seconds, name)
		WHERE extract(epoch FROM span) % u.seconds = 0 ORDER BY u.seconds DESC LIMIT 1) END;
COMMENT ON FUNCTION rate_limit_span IS 'An interval as a multiple of the largest unit that divides it, such as 90s or 24h.';
`

const policyOverrideAmounts = `
CREATE OR REPLACE FUNCTION rate_limit_check_overrides() RETURNS trigger
	LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	faults CONSTANT text := (SELECT string_agg(format('WHEN NOT (%s) THEN %L', pg_get_expr(c.conbin, c.conrelid), c.conname), ' ') FROM pg_constraint c
		JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attname IN ('events', 'burst')
		WHERE c.conrelid = 'rate_limit_rule_limits'::regclass AND c.contype = 'c' AND a.attnum = ANY (c.conkey) AND cardinality(c.conkey) > 1);
	wrong record;
BEGIN
	EXECUTE format('WITH checked AS MATERIALIZED (SELECT o.id, f.fault FROM rate_limit_rule_limits l
			JOIN rate_limit_overrides o ON (o.rule, o.limit_name) = (l.rule, l.name)
			CROSS JOIN LATERAL (SELECT CASE %s END AS fault FROM jsonb_populate_record(l,
				jsonb_build_object(''events'', o.events, ''burst'', coalesce(o.burst, l.burst)))) AS f
			WHERE %s FOR SHARE OF l)
		SELECT * FROM checked WHERE fault IS NOT NULL ORDER BY id LIMIT 1', faults, CASE TG_TABLE_NAME WHEN 'rate_limit_overrides' THEN 'o.id IN (SELECT id FROM changed_rows)'
			ELSE '(l.rule, l.name) IN (SELECT rule, name FROM changed_rows)' END) INTO wrong;
	IF wrong.id IS NOT NULL THEN
		RAISE EXCEPTION 'the override % violates check constraint "%"', wrong.id, wrong.fault USING ERRCODE = 'check_violation', CONSTRAINT = wrong.fault;
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_check_overrides IS 'Refuses overrides with amounts that their limits cannot have, and changes of limits that make existing overrides invalid.';
CREATE OR REPLACE TRIGGER rate_limit_suits AFTER INSERT ON rate_limit_overrides REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();
CREATE OR REPLACE TRIGGER rate_limit_still_suits AFTER UPDATE ON rate_limit_overrides REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();
CREATE OR REPLACE TRIGGER rate_limit_suits AFTER UPDATE ON rate_limit_rule_limits REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();
CREATE OR REPLACE FUNCTION rate_limit_check_unit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	IF EXISTS (SELECT FROM rate_limit_overrides o WHERE (o.rule, o.limit_name) = (OLD.rule, OLD.name) AND o.events IS NOT NULL) THEN
		RAISE check_violation USING MESSAGE = format( 'unit: %s: must stay %s while overrides have amounts of it', to_json(NEW.unit), OLD.unit);
	END IF;
	RETURN NEW;
END $$;
COMMENT ON FUNCTION rate_limit_check_unit IS 'Refuses to make a limit in money of another limit, or the reverse, while it has overrides.';
CREATE OR REPLACE TRIGGER rate_limit_check_unit BEFORE UPDATE OF unit ON rate_limit_rule_limits FOR EACH ROW WHEN ((OLD.unit = 'money') <> (NEW.unit = 'money')) EXECUTE FUNCTION rate_limit_check_unit();
`

const policyOverrides = `
CREATE TABLE IF NOT EXISTS rate_limit_overrides ( id         bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, rule       text NOT NULL, limit_name text NOT NULL,
	tier       text CONSTRAINT tier_must_be_in_rate_limit_tiers REFERENCES rate_limit_tiers ON UPDATE CASCADE ON DELETE CASCADE, user_id    text CONSTRAINT user_id_must_be_in_rate_limit_users
		REFERENCES rate_limit_users ON UPDATE CASCADE ON DELETE CASCADE, key_id     bigint CONSTRAINT key_id_must_be_in_rate_limit_api_keys REFERENCES rate_limit_api_keys ON UPDATE CASCADE ON DELETE CASCADE, events     bigint, burst      bigint,
	valid      tstzrange NOT NULL DEFAULT '(,)', reason     text, created_at timestamptz NOT NULL DEFAULT now(), created_by text NOT NULL DEFAULT session_user,
	CONSTRAINT rule_and_limit_name_must_be_in_rate_limit_rule_limits FOREIGN KEY (rule, limit_name) REFERENCES rate_limit_rule_limits ON UPDATE CASCADE ON DELETE CASCADE, CONSTRAINT exactly_one_of_tier_user_id_and_key_id_must_be_given
		CHECK (num_nonnulls(tier, user_id, key_id) = 1), CONSTRAINT events_must_be_null_or_0_to_9007199254740992 CHECK (events BETWEEN 0 AND 9007199254740992),
	CONSTRAINT burst_must_be_1_to_9007199254740992 CHECK (burst BETWEEN 1 AND 9007199254740992), CONSTRAINT valid_must_not_be_empty CHECK (NOT isempty(valid)) );
CREATE UNIQUE INDEX IF NOT EXISTS rate_limit_overrides_must_differ_in_more_than_the_amount ON rate_limit_overrides (rule, limit_name, tier, user_id, key_id, valid) NULLS NOT DISTINCT;
DO $$
DECLARE
	source record;
BEGIN
	FOR source IN SELECT t.name, part FROM (VALUES ('api_keys', '{replaced_by,counted_as,tier}'::text[]), ('overrides', '{tier,user_id,key_id}')) AS t(name, parts), unnest(t.parts) AS part
	LOOP
		EXECUTE format('CREATE INDEX IF NOT EXISTS rate_limit_%1$s_%2$s ON rate_limit_%1$s (%2$s)
			WHERE %2$s IS NOT NULL', source.name, source.part);
	END LOOP;
END $$;
CALL rate_limit_describe('rate_limit_overrides', $$
Amounts that replace the amount of a limit for a tier, a user or an API key. The override for the key applies,
	otherwise the override for the user, otherwise the override for the tier. If several overrides of the same
	kind are valid, the one that became valid last applies.
id: The number of the override.
rule: The rule of the limit.
limit_name: The name of the limit.
tier: For all users of this tier.
user_id: For this user.
key_id: For this API key.
events: The amount in place of the limit's amount, in millionths for money. 0: nothing passes. NULL:
	unlimited.
burst: The burst in place of the limit's burst. NULL: the limit's burst.
valid: When the override applies.
reason: A note. Proxies ignore it.
created_at: When the row was created.
created_by: The role that created the row.
$$);
DO $do$ BEGIN
	EXECUTE replace($sql$
CREATE OR REPLACE FUNCTION rate_limit_override_of(rule text, limit_name text, user_id text, key_id bigint)
RETURNS TABLE (id bigint, events bigint, burst bigint) LANGUAGE sql STABLE AS $$
	SELECT o.id, o.events, o.burst FROM {schema}.rate_limit_overrides o
	WHERE o.rule = $1 AND o.limit_name = $2 AND o.valid @> now() AND (o.key_id = $4
		OR o.user_id = coalesce($3, (SELECT k.user_id FROM {schema}.rate_limit_api_keys k WHERE k.id = $4))
		OR o.tier = (SELECT coalesce(k.tier, CASE WHEN u.tier_until > now() THEN u.tier END)
			FROM (SELECT) AS s LEFT JOIN {schema}.rate_limit_api_keys k ON k.id = $4
				LEFT JOIN {schema}.rate_limit_users u ON u.user_id = coalesce($3, k.user_id)))
	ORDER BY o.key_id NULLS LAST, o.user_id NULLS LAST, lower(o.valid) DESC NULLS LAST, o.id DESC LIMIT 1
$$;
$sql$, '{schema}', quote_ident(current_schema()));
END $do$;
COMMENT ON FUNCTION rate_limit_override_of IS
	'The override that now replaces the amount of a limit for a user or an API key. Proxies choose it in the '
	'same way. No row: the limit has its own amount.';
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
COMMENT ON FUNCTION rate_limit_set_overrides IS
	'Sets the overrides of a user or an API key, as rate_limit_user does with its argument overrides. '
	'Returns made.';
CREATE TABLE IF NOT EXISTS rate_limit_bans (
	id         bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	network    cidr CONSTRAINT rate_limit_bans_network_must_not_be_banned_twice UNIQUE,
	user_id    text CONSTRAINT rate_limit_bans_user_id_must_not_be_banned_twice UNIQUE,
	key_id     bigint CONSTRAINT rate_limit_bans_key_id_must_not_be_banned_twice UNIQUE
		CONSTRAINT key_id_must_be_in_rate_limit_api_keys REFERENCES rate_limit_api_keys ON UPDATE CASCADE
			ON DELETE CASCADE,
	until      timestamptz NOT NULL DEFAULT 'infinity',
	reason     text,
	banned_at  timestamptz NOT NULL DEFAULT now(),
	banned_by  text NOT NULL DEFAULT session_user,
	CONSTRAINT exactly_one_of_network_user_id_and_key_id_must_be_given
		CHECK (num_nonnulls(network, user_id, key_id) = 1),
	CONSTRAINT user_id_must_have_1_to_512_bytes CHECK (octet_length(user_id) BETWEEN 1 AND 512)
);
CREATE INDEX IF NOT EXISTS rate_limit_bans_until ON rate_limit_bans (until);
CALL rate_limit_describe('rate_limit_bans', $$
The banned networks, users and API keys. Deleting the row lifts the ban.
id: The number of the ban.
network: All addresses of this network.
user_id: This user, who need not be in rate_limit_users.
key_id: This API key.
until: When the ban ends. infinity: never.
reason: A note. Clients do not see it.
banned_at: When rate_limit_ban last set this ban.
banned_by: The role that last set this ban.
$$);
CREATE OR REPLACE FUNCTION rate_limit_network(network inet) RETURNS inet LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN network <<= '::ffff:0.0.0.0/96'
	THEN set_masklen(inet '0.0.0.0' + (network - inet '::ffff:0.0.0.0'), masklen(network) - 96)
	ELSE network END;
COMMENT ON FUNCTION rate_limit_network IS
	'An IPv4 address or network in IPv6 form, such as ::ffff:192.0.2.1, as IPv4, and any other address '
	'unchanged. Proxies treat both forms as equal.';
`

const policyPeople = `
CREATE TABLE IF NOT EXISTS rate_limit_tiers ( tier    text PRIMARY KEY, rank    bigint NOT NULL DEFAULT 0, comment text, CONSTRAINT tier_must_be_1_to_100_characters_without_spaces_or_slashes CHECK (tier ~ '^[^/[:space:][:cntrl:]]{1,100}$')
);
CALL rate_limit_describe('rate_limit_tiers', $$
The plans that users can be on, such as free and pro.
tier: The name, as in rate_limit_rules.tiers.
rank: The order of tiers in lists, lowest first. It has no effect on requests.
comment: A note. Proxies ignore it.
$$);
INSERT INTO rate_limit_tiers (tier, rank, comment) VALUES ('anonymous', -1, 'requests with neither an API key nor a user') ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS rate_limit_users ( user_id      text PRIMARY KEY, tier         text NOT NULL CONSTRAINT tier_must_be_in_rate_limit_tiers REFERENCES rate_limit_tiers ON UPDATE CASCADE,
	tier_until   timestamptz NOT NULL DEFAULT 'infinity', period_start date, time_zone    text NOT NULL DEFAULT 'UTC', comment      text, created_at   timestamptz NOT NULL DEFAULT now(), updated_at   timestamptz NOT NULL DEFAULT now(),
	parent       text, parent_level int, level        int NOT NULL DEFAULT 1, counted_as   text, CONSTRAINT level_must_be_one_more_than_parent_level CHECK (level = coalesce(parent_level, 0) + 1),
	CONSTRAINT parent_must_not_be_below_the_user_or_make_more_than_four_levels CHECK (CASE WHEN num_nulls(parent, parent_level) = 0 THEN parent_level BETWEEN 1 AND 3 AND parent <> user_id ELSE num_nulls(parent, parent_level) = 2 END),
	CONSTRAINT user_id_must_have_1_to_512_bytes CHECK (octet_length(user_id) BETWEEN 1 AND 512), CONSTRAINT period_start_must_be_a_day_from_1900_to_2999 CHECK (period_start BETWEEN '1900-01-01' AND '2999-12-31') );
CREATE INDEX IF NOT EXISTS rate_limit_users_tier ON rate_limit_users (tier);
CREATE UNIQUE INDEX IF NOT EXISTS rate_limit_users_level ON rate_limit_users (user_id, level);
CREATE UNIQUE INDEX IF NOT EXISTS rate_limit_users_must_count_by_different_names ON rate_limit_users (coalesce(counted_as, user_id));
DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'rate_limit_users'::regclass AND conname = 'parent_must_be_in_rate_limit_users') THEN
		ALTER TABLE rate_limit_users ADD CONSTRAINT parent_must_be_in_rate_limit_users FOREIGN KEY (parent, parent_level) REFERENCES rate_limit_users (user_id, level)
			ON UPDATE CASCADE ON DELETE RESTRICT DEFERRABLE INITIALLY DEFERRED;
	END IF;
END $$;
CREATE INDEX IF NOT EXISTS rate_limit_users_parent ON rate_limit_users (parent) WHERE parent IS NOT NULL;
CREATE INDEX IF NOT EXISTS rate_limit_users_time_zone ON rate_limit_users (time_zone) WHERE time_zone <> 'UTC';
CREATE INDEX IF NOT EXISTS rate_limit_users_tier_until ON rate_limit_users (tier_until) WHERE tier_until < 'infinity';
CALL rate_limit_describe('rate_limit_users', $$
The users of the API, each on one tier.
user_id: The user's name in the application or the proxy. Limits by user count by it.
tier: The tier until tier_until.
tier_until: When the tier ends. Then the user has the tier anonymous. infinity: never.
period_start: A day on which a billing period starts. In limits that count by user or key, the user's months and years start on this day, too. NULL: calendar months and years.
time_zone: The IANA name of the time zone in which the billing periods start at midnight: UTC or a place. A link such as US/Eastern becomes its target.
comment: A note. Proxies ignore it.
created_at: When the row was created.
updated_at: When the row was last changed.
parent: The user above, such as a team or an organization. Its limits by user apply to the requests of all users below it, too. NULL: none.
parent_level: The level of the parent. The database sets it.
level: 1 without a parent, and otherwise one more than the parent's, at most 4. The database sets it.
counted_as: The first name of a renamed user, by which it counts and is in the ledger. A new user with a name
	by which another one counts gets another name here. NULL: the user counts by its name.
$$);
CREATE OR REPLACE FUNCTION rate_limit_set_level() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	SELECT u.level INTO NEW.parent_level FROM rate_limit_users u WHERE u.user_id = NEW.parent;
	IF NEW.parent_level IS NULL AND NEW.parent IS NOT NULL THEN
		RAISE foreign_key_violation USING MESSAGE = format('parent: %s: must be in rate_limit_users',
			to_json(NEW.parent));
	END IF;
	NEW.level := coalesce(NEW.parent_level, 0) + 1;
	RETURN NEW;
END $$;
COMMENT ON FUNCTION rate_limit_set_level IS 'Sets the level of a user, and of its parent.';
CREATE OR REPLACE TRIGGER rate_limit_set_level BEFORE INSERT ON rate_limit_users FOR EACH ROW
	WHEN (NEW.parent_level IS NULL OR current_setting('search_path') NOT IN ('', '""'))
	EXECUTE FUNCTION rate_limit_set_level();
CREATE OR REPLACE TRIGGER rate_limit_change_level BEFORE UPDATE OF parent, parent_level ON rate_limit_users
	FOR EACH ROW EXECUTE FUNCTION rate_limit_set_level();
CREATE TABLE IF NOT EXISTS rate_limit_api_keys (
	id          bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	digest      bytea NOT NULL CONSTRAINT rate_limit_api_keys_digest_must_be_new UNIQUE,
	hint        text,
	name        text,
	user_id     text NOT NULL CONSTRAINT user_id_must_be_in_rate_limit_users
		REFERENCES rate_limit_users ON UPDATE CASCADE ON DELETE CASCADE,
	tier        text CONSTRAINT tier_must_be_in_rate_limit_tiers
		REFERENCES rate_limit_tiers ON UPDATE CASCADE,
	expires_at  timestamptz NOT NULL DEFAULT 'infinity',
	revoked_at  timestamptz,
	revoked_by  text,
	replaced_by bigint CONSTRAINT replaced_by_must_be_the_id_of_a_key
		REFERENCES rate_limit_api_keys ON DELETE SET NULL,
	counted_as  bigint CONSTRAINT counted_as_must_be_the_id_of_a_key
		REFERENCES rate_limit_api_keys ON DELETE SET NULL,
	created_at  timestamptz NOT NULL DEFAULT now(),
	CONSTRAINT id_must_be_above_0 CHECK (id > 0),
	CONSTRAINT digest_must_be_a_sha256_of_32_bytes CHECK (octet_length(digest) = 32),
	CONSTRAINT hint_must_not_be_long_enough_to_be_a_key CHECK (length(hint) <= 16),
	CONSTRAINT name_must_have_1_to_200_characters CHECK (length(name) BETWEEN 1 AND 200),
	CONSTRAINT revoked_by_needs_revoked_at CHECK (revoked_by IS NULL OR revoked_at IS NOT NULL),
	CONSTRAINT replaced_by_must_be_another_key CHECK (replaced_by <> id)
);
CREATE INDEX IF NOT EXISTS rate_limit_api_keys_user_id ON rate_limit_api_keys (user_id);
CALL rate_limit_describe('rate_limit_api_keys', $$
The API keys of users. Only the digests of keys are stored.
id: The number of the key. Limits that count by key count by it, unless counted_as is given.
digest: The SHA-256 of the whole key: sha256(convert_to('the key', 'UTF8')). If a key of your own begins with
	prl_, proxies refuse it, because it lacks the checksum of keys create.
hint: The first characters of the key, to recognize it.
name: The purpose of the key.
user_id: The user of the key. All keys of a user share the limits that count by user.
expires_at: When the key expires. infinity: never.
revoked_at: When the key is revoked, possibly in the future. NULL: it is not revoked.
revoked_by: The role or the person that revoked the key.
replaced_by: The key that replaced this key.
counted_as: The key with which this key shares its counters in limits that count by key: the first of the
	keys that replaced each other. NULL: the key has its own counters.
created_at: When the row was created.
tier: The tier of requests with the key. NULL: the user's tier.
$$);
DO $do$ BEGIN EXECUTE replace($sql$ CREATE OR REPLACE FUNCTION rate_limit_lineage(user_id text)
RETURNS TABLE (user_id text, counts text, place int) LANGUAGE sql STABLE ROWS 2 AS $$
	WITH RECURSIVE up AS ( SELECT $1 AS user_id, coalesce(u.counted_as, $1) AS counts, u.parent, 0 AS place FROM (SELECT) AS s LEFT JOIN {schema}.rate_limit_users u ON u.user_id = $1
		UNION ALL SELECT p.user_id, coalesce(p.counted_as, p.user_id), p.parent, up.place + 1
		FROM up JOIN {schema}.rate_limit_users p ON p.user_id = up.parent WHERE up.place < 3
	) SELECT up.user_id, up.counts, up.place FROM up
$$;
$sql$, '{schema}', quote_ident(current_schema()));
END $do$;
COMMENT ON FUNCTION rate_limit_lineage IS 'A user, the users above it, and the names by which they count. place is 0 for the user itself.';
CREATE OR REPLACE FUNCTION rate_limit_refuse_parent(user_id text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	below CONSTANT bigint := (SELECT count(*) FROM rate_limit_users u WHERE u.parent = $1);
BEGIN
	IF below > 0 THEN
		RAISE foreign_key_violation USING MESSAGE = format('user: %s: must not be the parent of other users: give these %s another parent first', to_json($1), below);
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_refuse_parent IS 'Fails if a user is the parent of others.';
`

const policyPrices = `
CREATE TABLE IF NOT EXISTS rate_limit_prices ( model             text NOT NULL, valid             tstzrange NOT NULL DEFAULT '(,)', input             numeric NOT NULL, cache_read        numeric, cache_write       numeric,
	output            numeric NOT NULL, above             bigint, above_input       numeric, above_cache_read  numeric, above_cache_write numeric, above_output      numeric, max_output        bigint, comment           text,
	created_at        timestamptz NOT NULL DEFAULT now(), updated_at        timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (model, valid), CONSTRAINT model_must_be_a_name_that_may_end_in_an_asterisk
		CHECK (model ~ '^([^*[:cntrl:]]{1,199}|[^*[:cntrl:]]{0,199}[*])$'), CONSTRAINT valid_must_not_be_empty CHECK (NOT isempty(valid)), CONSTRAINT above_must_be_1_to_9007199254740992 CHECK (above BETWEEN 1 AND 9007199254740992),
	CONSTRAINT above_needs_above_input_and_above_output CHECK (num_nonnulls(above, above_input, above_output) IN (0, 3)), CONSTRAINT above_cache_read_needs_above CHECK (above_cache_read IS NULL OR above IS NOT NULL),
	CONSTRAINT above_cache_write_needs_above CHECK (above_cache_write IS NULL OR above IS NOT NULL), CONSTRAINT max_output_must_be_1_to_9007199254740992 CHECK (max_output BETWEEN 1 AND 9007199254740992) );
DO $$
DECLARE
	price text;
BEGIN
	FOREACH price IN ARRAY '{input,cache_read,cache_write,output,above_input,above_cache_read,above_cache_write,above_output}'::text[] LOOP
		IF NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conrelid = 'rate_limit_prices'::regclass AND c.conname = price || '_must_be_0_to_1000000000') THEN
			EXECUTE format('ALTER TABLE rate_limit_prices ADD CONSTRAINT %I CHECK (%I BETWEEN 0 AND 1000000000)', price || '_must_be_0_to_1000000000', price);
		END IF;
	END LOOP;
END $$;
CALL rate_limit_describe('rate_limit_prices', $$
The prices of language models, for limits in money. Each is for a million tokens, in the currency of your choice.
model: The model as requests name it, without regard to case. A name that ends in * is a pattern of the names
	that begin with the rest. A name goes before patterns, and a longer pattern before a shorter one.
valid: When the price holds. If several of a model hold, the one that became valid last does.
input: The price of input.
cache_read: The price of input from a cache. NULL: the price of input.
cache_write: The price of input that is written to a cache. NULL: the price of input.
output: The price of output.
above: A number of tokens of input, from a cache or not. A request with more of them has the following prices for all its tokens. NULL: none.
above_input: As input, above that number.
above_cache_read: As cache_read, above that number.
above_cache_write: As cache_write, above that number.
above_output: As output, above that number.
max_output: The largest output of the model. A request holds at most this, whatever it names. NULL: unknown.
comment: A note. Proxies ignore it.
created_at: When the row was created.
updated_at: When the row was last changed.
$$);
CREATE OR REPLACE FUNCTION rate_limit_model(model text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN lower(model COLLATE "C");
COMMENT ON FUNCTION rate_limit_model IS 'The name of a model, as prices have it.';
CREATE OR REPLACE FUNCTION rate_limit_set_model() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.model := rate_limit_model(NEW.model);
	RETURN NEW;
END $$;
COMMENT ON FUNCTION rate_limit_set_model IS 'Sets the name of a model in the form that prices have.';
CREATE OR REPLACE TRIGGER rate_limit_set_model BEFORE INSERT OR UPDATE OF model ON rate_limit_prices FOR EACH ROW EXECUTE FUNCTION rate_limit_set_model();
CREATE OR REPLACE FUNCTION rate_limit_is_money(amount text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE WHEN amount ~ '^[0-9]{1,10}([.][0-9]{1,6}0*)?$' THEN amount::numeric <= 9007199254.740992 ELSE false END;
COMMENT ON FUNCTION rate_limit_is_money IS 'Whether a text is an amount of money that a limit can have.';
CREATE OR REPLACE FUNCTION rate_limit_units(amount text, unit text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE
	AS $$
BEGIN
	IF unit = 'money' AND rate_limit_is_money(amount) THEN
		RETURN amount::numeric * 1000000;
	ELSIF amount IS NOT NULL AND unit = 'money' OR amount !~ '^[0-9]{1,18}$' THEN
		RAISE invalid_parameter_value USING MESSAGE = format('amount: %s: must be %s', to_json(amount), CASE unit WHEN 'money' THEN '0 to 9007199254.740992 with at most 6 decimals'
				ELSE 'a whole number' END);
	END IF;
	RETURN amount;
END $$;
COMMENT ON FUNCTION rate_limit_units IS 'What an amount of a unit counts: an amount of money in millionths, and any other one unchanged.';
CREATE OR REPLACE FUNCTION rate_limit_policy_amount(fields jsonb, is_money boolean, inward boolean) RETURNS jsonb LANGUAGE sql IMMUTABLE
RETURN CASE WHEN is_money IS NOT TRUE OR coalesce(fields ->> 'events', '') !~ '^[0-9]+([.][0-9]{1,6}0*)?$' THEN fields ELSE fields || jsonb_build_object('events', CASE WHEN inward THEN trim_scale((fields ->> 'events')::numeric * 1000000)
		ELSE rate_limit_decimal((fields ->> 'events')::bigint, 'money') END) END;
COMMENT ON FUNCTION rate_limit_policy_amount IS 'A row of a document with its amount of money in millionths (inward), or as a decimal number.';
`

const policyProxyFunctions = `
CREATE OR REPLACE FUNCTION rate_limit_forget() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	forgotten bigint;
BEGIN
	DELETE FROM rate_limit_bans b WHERE b.until < now() - interval '30 days';
	DELETE FROM rate_limit_changes WHERE seq IN (SELECT seq FROM rate_limit_changes WHERE at < now() - interval '30 days' ORDER BY at LIMIT 10000);
	GET DIAGNOSTICS forgotten = ROW_COUNT;
	RETURN forgotten;
END $$;
COMMENT ON FUNCTION rate_limit_forget IS 'Deletes bans that ended more than 30 days ago, and up to 10,000 changes that are older than 30 days. Returns the number of deleted changes.';
`

const policyRenames = `
CREATE OR REPLACE FUNCTION rate_limit_rename_references() RETURNS trigger
	LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	IF TG_TABLE_NAME = 'rate_limit_users' THEN
		DELETE FROM rate_limit_bans b USING rate_limit_bans o WHERE b.user_id IN (OLD.user_id, NEW.user_id) AND o.user_id IN (OLD.user_id, NEW.user_id) AND (b.until, b.id) < (o.until, o.id);
		UPDATE rate_limit_bans SET user_id = NEW.user_id WHERE user_id = OLD.user_id;
	ELSIF OLD.tier = 'anonymous' THEN
		RAISE EXCEPTION 'tier: ''anonymous'': must keep its name: it is the tier of requests without a user' USING ERRCODE = 'check_violation';
	ELSE
		UPDATE rate_limit_rules SET tiers = array_replace(tiers, OLD.tier, NEW.tier) WHERE OLD.tier = ANY (tiers);
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_rename_references IS 'Updates the bans of a renamed user, and the rules for a renamed tier.';
CREATE OR REPLACE TRIGGER rate_limit_rename_references AFTER UPDATE OF user_id ON rate_limit_users FOR EACH ROW WHEN (OLD.user_id <> NEW.user_id) EXECUTE FUNCTION rate_limit_rename_references();
CREATE OR REPLACE TRIGGER rate_limit_rename_references AFTER UPDATE OF tier ON rate_limit_tiers FOR EACH ROW WHEN (OLD.tier <> NEW.tier) EXECUTE FUNCTION rate_limit_rename_references();
CREATE OR REPLACE FUNCTION rate_limit_count_as() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	name CONSTANT text := to_jsonb(NEW) ->> TG_ARGV[0];
	old_name text := name;
	n int := 1;
	taken boolean := true;
BEGIN
	IF TG_OP = 'UPDATE' THEN
		old_name := to_jsonb(OLD) ->> TG_ARGV[0];
	END IF;
	IF old_name <> name AND NEW.counted_as IS NOT DISTINCT FROM OLD.counted_as THEN
		NEW.counted_as := coalesce(OLD.counted_as, old_name);
	ELSIF NEW.counted_as IS NULL THEN
		LOOP
			EXECUTE format('SELECT EXISTS (SELECT FROM %1$s r WHERE r.%2$I <> $1
				AND coalesce(r.counted_as, r.%2$I) = $2)', TG_RELID::regclass, TG_ARGV[0])
				INTO taken USING old_name, coalesce(NEW.counted_as, name);
			EXIT WHEN NOT taken;
			n := n + 1;
			NEW.counted_as := name || '-' || n;
		END LOOP;
	END IF;
	NEW.counted_as := nullif(NEW.counted_as, name);
	RETURN NEW;
END $$;
COMMENT ON FUNCTION rate_limit_count_as IS 'Keeps the name by which a renamed rule or user counts, and gives a new one a name by which no other one counts.';
CREATE OR REPLACE TRIGGER rate_limit_count_as BEFORE INSERT OR UPDATE OF name, counted_as ON rate_limit_rules FOR EACH ROW EXECUTE FUNCTION rate_limit_count_as('name');
CREATE OR REPLACE TRIGGER rate_limit_count_as BEFORE INSERT OR UPDATE OF user_id, counted_as ON rate_limit_users FOR EACH ROW EXECUTE FUNCTION rate_limit_count_as('user_id');
`

const policyRuleFunction = `
CREATE OR REPLACE FUNCTION rate_limit_rule( name text, family text DEFAULT NULL, priority bigint DEFAULT NULL, mode text DEFAULT NULL, action text DEFAULT NULL,
	tiers text[] DEFAULT NULL, hosts text[] DEFAULT NULL, paths text[] DEFAULT NULL, methods text[] DEFAULT NULL, networks cidr[] DEFAULT NULL, count_by text[] DEFAULT NULL, algorithm text DEFAULT NULL,
	per_second bigint DEFAULT NULL, per_minute bigint DEFAULT NULL, per_hour bigint DEFAULT NULL, per_day bigint DEFAULT NULL, per_month bigint DEFAULT NULL, burst bigint DEFAULT NULL, durable boolean DEFAULT NULL, on_exceed text DEFAULT NULL,
	valid tstzrange DEFAULT NULL, cost bigint DEFAULT NULL, status int DEFAULT NULL, message text DEFAULT NULL, retry_after interval DEFAULT NULL, comment text DEFAULT NULL,
	without_header text DEFAULT NULL, settle text DEFAULT NULL, in_flight bigint DEFAULT NULL, limits text[] DEFAULT NULL, reset text[] DEFAULT NULL, notify bigint[] DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	windows CONSTANT jsonb := '{"per_second": "1s", "per_minute": "1m", "per_hour": "1h", "per_day": "24h",
		"per_month": "1mo calendar", "in_flight": "in_flight"}';
	amounts CONSTANT jsonb := (SELECT jsonb_strip_nulls(to_jsonb(a)) FROM (SELECT per_second, per_minute, per_hour, per_day, per_month, in_flight) AS a);
	resets CONSTANT text[] := coalesce(reset, '{}');
	limit_names CONSTANT text[] := ARRAY(SELECT jsonb_object_keys(windows)) || '{burst,durable,on_exceed,notify}';
	result text;
	fault text;
BEGIN
	SELECT format('tiers: %s: must be in rate_limit_tiers, which has %s', string_agg(quote_literal(t), ', '), (SELECT coalesce(string_agg(quote_literal(k.tier), ', ' ORDER BY k.rank, k.tier), 'none')
				FROM rate_limit_tiers k)) INTO fault
		FROM unnest(tiers) AS t WHERE t NOT IN (SELECT k.tier FROM rate_limit_tiers k) HAVING count(*) > 0;
	SELECT coalesce(fault, string_agg(a.key || ': ' || a.value, ', ') || ': must be null or 0 to 9007199254740992') INTO fault
		FROM jsonb_each_text(amounts) AS a WHERE a.value::bigint NOT BETWEEN 0 AND 9007199254740992;
	IF fault IS NOT NULL THEN
		RAISE check_violation USING MESSAGE = fault;
	END IF;
	result := rate_limit_set('rate_limit_rules', '{name}', (SELECT jsonb_object_agg(f, NULL) FROM unnest(limit_names) AS f) || (SELECT to_jsonb(r) FROM (SELECT name, family, priority, mode,
			action, tiers, hosts, paths, methods, networks, count_by, valid, cost, status, message,
			retry_after, comment, without_header, settle) AS r),
		ARRAY(SELECT n FROM unnest(resets) AS n WHERE n <> ALL (limit_names) OR n IS NULL));
	PERFORM CASE WHEN f.l ~ '^[^=]+=$' THEN rate_limit_delete_limit(name, rtrim(f.l, '='))::text ELSE rate_limit_limit(name, split_part(f.l, '=', 1), coalesce(substring(f.l FROM '=(.*)$'), ''),
			algorithm, CASE WHEN f.l !~ '=.*(calendar|in_flight)' THEN burst END, durable,
			CASE WHEN f.l !~ '=.*in_flight' THEN on_exceed END) END
		FROM (SELECT unnest(limits) UNION ALL SELECT concat(a.key, '=', a.value, '/', windows ->> a.key) FROM jsonb_each_text(amounts) AS a
			WHERE a.key NOT IN (SELECT l.name FROM rate_limit_rule_limits l WHERE l.rule = name)) AS f(l);
	PERFORM rate_limit_set('rate_limit_rule_limits', '{rule,name}', jsonb_build_object('rule', name, 'name', l.name, 'events', rate_limit_units(amounts ->> l.name, l.unit), 'durable', durable,
			'algorithm', CASE WHEN l.per IS NOT NULL THEN algorithm END,
			'burst', CASE WHEN l.per IS NOT NULL THEN burst END,
			'on_exceed', CASE WHEN l.algorithm <> 'in_flight' THEN on_exceed END,
			'notify', CASE WHEN coalesce(algorithm, l.algorithm) = 'fixed_window' THEN notify END),
			ARRAY(SELECT n FROM unnest(resets) AS n WHERE n IN ('burst', 'durable', 'on_exceed', 'notify')))
		FROM rate_limit_rule_limits l WHERE l.rule = name AND (amounts ? l.name OR resets && '{burst,durable,on_exceed,notify}' OR num_nonnulls(algorithm, burst, durable, on_exceed, notify) > 0);
	DELETE FROM rate_limit_rule_limits l WHERE l.rule = name AND l.name = ANY (resets) AND windows ? l.name AND NOT amounts ? l.name;
	PERFORM rate_limit_complete(name); -- now, and not at the end of the transaction
	SELECT CASE WHEN NOT coalesce(bool_or(l.algorithm = algorithm), algorithm IS NULL) THEN format('algorithm: %s: the rule has no limit with a window', to_json(algorithm))
		WHEN NOT coalesce(bool_or(l.burst = burst), burst IS NULL) THEN format('burst: %s: the rule has no limit with a window', burst)
		WHEN NOT coalesce(bool_or(l.on_exceed = on_exceed), on_exceed IS NULL) THEN format('on_exceed: %s: the rule has no limit with a window or a calendar', to_json(on_exceed))
		WHEN NOT coalesce(bool_or(l.notify = notify), notify IS NULL) THEN format('notify: %s: the rule has no limit with a fixed window or a calendar', to_json(notify))
		WHEN durable AND count(*) = 0 THEN 'durable: true: the rule has no limit' END
	INTO fault FROM rate_limit_rule_limits l WHERE l.rule = name;
	IF fault IS NOT NULL THEN
		RAISE check_violation USING MESSAGE = fault;
	END IF;
	RETURN result;
END $$;
COMMENT ON FUNCTION rate_limit_rule IS 'Creates or changes a rule with its limits. limits are limits with any window, as in short=50/10s or '
	'tpm=5000 tokens/1m, or short= to delete one. reset also deletes limits by their names. Returns created or changed.';
`

const policyRules = `
CREATE TABLE IF NOT EXISTS rate_limit_rules ( name        text PRIMARY KEY, family      text, priority    bigint NOT NULL DEFAULT 100, mode        text NOT NULL DEFAULT 'enforce', action      text NOT NULL DEFAULT 'limit',
	hosts       text[], paths       text[], methods     text[], networks    cidr[], tiers       text[], count_by    text[] NOT NULL DEFAULT '{user}', without_header text NOT NULL DEFAULT 'share', valid       tstzrange NOT NULL DEFAULT '(,)',
	cost        bigint NOT NULL DEFAULT 1, settle      text, status      bigint, message     text, retry_after interval, comment     text, created_at  timestamptz NOT NULL DEFAULT now(), created_by  text NOT NULL DEFAULT session_user,
	updated_at  timestamptz NOT NULL DEFAULT now(), CONSTRAINT rate_limit_rules_of_a_family_must_have_different_priorities UNIQUE (family, priority) DEFERRABLE, CONSTRAINT name_must_be_1_to_100_letters_digits_or_dots_dashes_underscores
		CHECK (name ~ '^[A-Za-z0-9._-]{1,100}$'), CONSTRAINT family_must_be_null_or_a_name_like_that_of_a_rule CHECK (family ~ '^[A-Za-z0-9._-]{1,100}$'),
	CONSTRAINT mode_must_be_enforce_or_shadow_or_off CHECK (mode IN ('enforce', 'shadow', 'off')), CONSTRAINT action_must_be_limit_or_block_or_exempt CHECK (action IN ('limit', 'block', 'exempt')),
	CONSTRAINT hosts_must_be_null_or_names_without_ports_as_in_example_com CHECK (rate_limit_each_matches(hosts, '^((\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|(?=.*:.*:)([0-9A-Fa-f:.]+|\[[0-9A-Fa-f:.]+\]))$')),
	CONSTRAINT paths_must_be_null_or_begin_with_slash_and_have_whole_wildcards CHECK (rate_limit_each_matches(paths, '^(/(\*|[^/*[:cntrl:]]*))+$')), CONSTRAINT paths_must_not_have_empty_or_dot_segments_or_escapes_or_queries
		CHECK (rate_limit_each_matches(paths, '^(/|(/(?!\.{1,2}(/|$))([^/?\\%]|%(?![0-9A-Fa-f]{2}))+)+/?)$')), CONSTRAINT methods_must_be_null_or_names_such_as_get CHECK (rate_limit_each_matches(methods, '^[A-Za-z][A-Za-z-]{0,31}$')),
	CONSTRAINT networks_must_be_null_or_a_list_without_nulls CHECK (cardinality(networks) > 0 AND array_ndims(networks) = 1 AND num_nulls(VARIADIC networks) = 0), CONSTRAINT tiers_must_be_null_or_names_of_tiers
		CHECK (rate_limit_each_matches(tiers, '^[^/[:space:][:cntrl:]]{1,100}$')), CONSTRAINT count_by_all_must_stand_alone CHECK (cardinality(count_by) = 1 OR 'all' <> ALL (count_by)),
	CONSTRAINT count_by_must_have_each_name_once CHECK (rate_limit_each_once(count_by)), CONSTRAINT valid_must_not_be_empty CHECK (NOT isempty(valid)), CONSTRAINT cost_must_be_1_to_9007199254740992 CHECK (cost BETWEEN 1 AND 9007199254740992),
	CONSTRAINT settle_must_be_header_or_bytes_or_json_or_status CHECK (settle ~ '^(bytes|header [A-Za-z0-9!#$%&''*+.^_|~-]+|json [^[:space:][:cntrl:].]+(\.[^[:space:][:cntrl:].]+)*|status [1-5][0-9]{2}( [1-5][0-9]{2})* = '
		'[0-9]{1,15}, else [0-9]{1,15})$'), CONSTRAINT status_must_be_400_to_599 CHECK (status BETWEEN 400 AND 599), CONSTRAINT message_must_have_at_most_4096_bytes CHECK (octet_length(message) <= 4096),
	CONSTRAINT retry_after_must_be_0_to_36525_days_without_months CHECK ( date_trunc('month', retry_after) = '0' AND retry_after BETWEEN interval '0' AND interval '36525 days') );
DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'rate_limit_rules'::regclass AND conname = 'without_header_must_be_share_or_skip_or_refuse') THEN
		ALTER TABLE rate_limit_rules DROP CONSTRAINT IF EXISTS count_by_must_be_of_user_key_tier_ip_host_route_header_or_all, DROP CONSTRAINT IF EXISTS without_header_must_be_share_or_skip;
		UPDATE rate_limit_rules SET count_by = ARRAY( SELECT replace(regexp_replace(n, '(^|\|)ip(?=\||$)', '\1ip/128'), 'ip/64', 'ip') FROM unnest(count_by) WITH ORDINALITY AS u(n, place) ORDER BY place)
			WHERE '|' || array_to_string(count_by, '|') || '|' LIKE '%|ip/64|%';
		ALTER TABLE rate_limit_rules ADD CONSTRAINT count_by_must_be_of_user_key_tier_ip_host_route_header_or_all CHECK (rate_limit_each_matches(count_by, '^(all|((user|key|tier|ip|ip/128|host|route|'
				'header:[A-Za-z0-9!#$%&''*+.^_~-]+)(\|(?!$)|$))+)$')),
			ADD CONSTRAINT without_header_must_be_share_or_skip_or_refuse CHECK (without_header IN ('share', 'skip', 'refuse'));
	END IF;
END $$;
DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = 'rate_limit_rules'::regclass AND a.attname = 'counted_as' AND NOT a.attisdropped) THEN
		ALTER TABLE rate_limit_rules ADD COLUMN counted_as text CONSTRAINT counted_as_must_be_1_to_120_letters_digits_or_dots_dashes CHECK (counted_as ~ '^[A-Za-z0-9._-]{1,120}$'),
			ADD CONSTRAINT rate_limit_rules_must_count_by_different_names EXCLUDE USING btree ((coalesce(counted_as, name)) WITH =) DEFERRABLE;
	END IF;
	IF NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conrelid = 'rate_limit_rules'::regclass AND c.conname LIKE 'settle\_must\_take%') THEN
		ALTER TABLE rate_limit_rules ADD CONSTRAINT settle_must_take_a_header_of_its_own_that_clients_do_not_need
			CHECK (settle !~* ('^header (grpc-.*|content-.*|access-control-.*|sec-.*|proxy-.*|set-cookie|trailer|transfer-encoding|connection|keep-alive|upgrade|te|date|location|vary|etag|'
				'last-modified|cache-control|expires|age|pragma|allow|accept-ranges|www-authenticate|'
				'authorization|retry-after|strict-transport-security|link|server|via|warning)$')) NOT VALID;
	END IF;
END $$;
CALL rate_limit_describe('rate_limit_rules', $$
Rules that limit, block or exempt requests. A rule matches a request if all its conditions hold. A condition that is NULL always holds.
name: The name.
family: Within a family, only the matching rule with the highest priority applies. NULL: no family.
priority: The order of rules, highest first.
mode: enforce; shadow: the rule counts and reports but refuses nothing; off: the rule is ignored.
action: limit: the limits of the rule apply; block: requests are refused; exempt: no limits of rules apply to requests.
hosts: Host names without a port. *.example.com matches every name below example.com.
paths: Paths that start with a slash. * matches one segment; a final * matches the rest: /api/* matches /api/a/b.
methods: Methods, such as GET.
networks: Networks that contain the client's address. An unknown address is in none, except that for limit
	and block it is in {0.0.0.0/0,::/0}.
tiers: The user's tier must be one of these.
count_by: What each counter counts: a combination of user, key, tier, ip, ip/128, host, route and header:NAME. ip: an IPv4 address, or the /64 network of an IPv6 address; ip/128: each IPv6 address.
	Alternatives such as user|ip use the first that the request has. all: one counter for all requests.
without_header: For header:NAME in count_by. share: all requests with a missing or empty header share one
	counter; skip: the rule does not match them; refuse: they are refused with 401. With share and refuse, a
	CORS preflight without the header counts by its client.
valid: When the rule applies.
cost: The units that a request charges to each limit of requests.
settle: How to read the actual cost from the response: header X-Tokens, bytes, json usage.total_tokens, or status 401 403 = 1, else 0. NULL: the actual cost is cost.
status: The HTTP status of a refusal, from 400 to 599. NULL: 429 for limits, 403 for a block.
message: The text of a refusal. NULL: the proxy's text.
retry_after: The Retry-After of a refusal. NULL: for limits, the time until the request would pass; for a
	block, none.
comment: A note. Proxies ignore it.
created_at: When the row was created.
created_by: The role that created the row.
updated_at: When the row was last changed. Changes of its limits are in rate_limit_changes only.
counted_as: The first name of a renamed rule, by which the rule counts, so that it keeps its counters. A new
	rule with a name by which another rule counts gets another one here. NULL: the rule counts by its name.
$$);
CREATE TABLE IF NOT EXISTS rate_limit_rule_limits (
	rule      text NOT NULL CONSTRAINT rule_must_be_in_rate_limit_rules
		REFERENCES rate_limit_rules ON UPDATE CASCADE ON DELETE CASCADE,
	name      text NOT NULL,
	algorithm text NOT NULL DEFAULT 'sliding_window',
	events    bigint,
	per       interval,
	calendar  text,
	time_zone text,
	burst     bigint,
	durable   boolean,
	on_exceed text NOT NULL DEFAULT 'refuse',
	unit      text NOT NULL DEFAULT 'requests',
	output    bigint,
	fields    boolean NOT NULL DEFAULT true,
	notify    bigint[],
	PRIMARY KEY (rule, name),
	CONSTRAINT name_must_be_1_to_100_letters_digits_or_dots_dashes_underscores
		CHECK (name ~ '^[A-Za-z0-9._-]{1,100}$'),
	CONSTRAINT algorithm_must_be_one_that_the_documentation_names
		CHECK (algorithm IN ('sliding_window', 'fixed_window', 'token_bucket', 'sliding_log', 'gcra',
		'in_flight')),
	CONSTRAINT events_must_be_null_or_0_to_9007199254740992 CHECK (events BETWEEN 0 AND 9007199254740992),
	CONSTRAINT events_of_sliding_log_must_be_at_most_1000
		CHECK (algorithm <> 'sliding_log' OR events <= 1000),
	CONSTRAINT events_of_in_flight_must_be_at_most_1000 CHECK (algorithm <> 'in_flight' OR events <= 1000),
	CONSTRAINT exactly_one_of_per_and_calendar_must_be_given
		CHECK (num_nonnulls(per, calendar) = CASE algorithm WHEN 'in_flight' THEN 0 ELSE 1 END),
	CONSTRAINT per_must_be_1_ms_to_36525_days_without_months CHECK (
		date_trunc('month', per) = '0' AND per BETWEEN interval '1 ms'
			AND interval '36525 days'),
	CONSTRAINT calendar_must_be_day_or_week_or_month_or_year
		CHECK (calendar IN ('day', 'week', 'month', 'year')),
	CONSTRAINT calendar_needs_fixed_window CHECK (calendar IS NULL OR algorithm = 'fixed_window'),
	CONSTRAINT time_zone_needs_calendar CHECK (time_zone IS NULL OR calendar IS NOT NULL),
	CONSTRAINT burst_must_be_1_to_9007199254740992 CHECK (burst BETWEEN 1 AND 9007199254740992),
	CONSTRAINT burst_needs_token_bucket_or_gcra
		CHECK (burst IS NULL OR algorithm IN ('token_bucket', 'gcra')),
	CONSTRAINT gcra_must_have_burst_times_per_in_microseconds_up_to_2_pow_62 CHECK (algorithm <> 'gcra'
		OR greatest(coalesce(burst, events), events)::numeric * (extract(epoch
			FROM per) * 1000000) <= 4611686018427387904),
	CONSTRAINT gcra_must_drain_a_full_burst_within_36525_days CHECK (algorithm <> 'gcra' OR events = 0
		OR coalesce(burst, events)::numeric * extract(epoch FROM per) <= events::numeric * 3155760000),
	CONSTRAINT on_exceed_must_be_refuse_or_overage CHECK (on_exceed IN ('refuse', 'overage')),
	CONSTRAINT overage_needs_fixed_window_or_sliding_window
		CHECK (on_exceed <> 'overage' OR algorithm IN ('fixed_window', 'sliding_window')),
	CONSTRAINT unit_must_be_one_that_the_documentation_names
		CHECK (unit IN ('requests', 'tokens', 'input_tokens', 'output_tokens', 'money')),
	CONSTRAINT unit_other_than_requests_needs_fixed_window_or_sliding_window
		CHECK (unit = 'requests' OR algorithm IN ('fixed_window', 'sliding_window')),
	CONSTRAINT output_must_be_1_to_9007199254740992 CHECK (output BETWEEN 1 AND 9007199254740992),
	CONSTRAINT output_needs_unit_of_tokens CHECK (output IS NULL OR unit <> 'requests'),
	CONSTRAINT notify_needs_fixed_window CHECK (notify IS NULL OR algorithm = 'fixed_window'),
	CONSTRAINT notify_must_have_1_to_10_percentages_from_1_to_1000
		CHECK (rate_limit_each_matches(notify::text[], '^([1-9][0-9]{0,2}|1000)$')
			AND rate_limit_each_once(notify::text[]) AND cardinality(notify) <= 10)
);
CALL rate_limit_describe('rate_limit_rule_limits', $$
The limits of rules. A request passes only if all limits of its rules admit it.
rule: The name of the rule.
name: The name of the limit, unique within the rule, such as per_hour. The prefix of the counters is
	rule/, the rule's counted_as or name, a slash and this name.
algorithm: sliding_window, fixed_window, token_bucket, sliding_log, gcra or in_flight.
events: The quota per window, in millionths for money. For in_flight: the number of concurrent requests. 0: nothing passes. NULL: the limit applies only where an override has an amount.
per: The length of the window. A day is 24 hours. NULL with calendar, and for in_flight.
calendar: In place of per: day, week, month or year of the calendar. For users with a period_start, months and years start on that day.
time_zone: The IANA name of the calendar's time zone, as for users. NULL: UTC. Users with a period_start use
	their own time zone.
burst: The capacity of a token_bucket, or the largest burst that gcra allows. NULL: events. A token_bucket
	with a burst below events refills evenly.
durable: true: the counts survive a crash of the server. NULL: true with a unit of tokens, else false.
on_exceed: refuse; overage: requests beyond the quota pass, are counted, and have a mark in their
	responses.
unit: What is counted: requests, or tokens of language models, which responses report: tokens,
	input_tokens without those from a cache, or output_tokens; or money, by the prices of rate_limit_prices.
output: The tokens of output that a request holds until its response has ended if it names no maximum, with
	a unit of tokens or money. NULL: 4096.
fields: false: neither fields of responses nor bodies say what is left.
notify: Percentages of the quota. A counter that reaches one in a window gets a row in rate_limit_notices.
$$);
`

const policyTriggers = `
CREATE OR REPLACE FUNCTION rate_limit_change_ref(kind text, r jsonb) RETURNS text LANGUAGE sql STABLE AS $$
	SELECT CASE kind WHEN 'key' THEN substr(r->>'digest', 3) WHEN 'limit' THEN concat(r->>'rule', '/', r->>'name') WHEN 'rule' THEN r->>'name' WHEN 'tier' THEN r->>'tier' WHEN 'user' THEN r->>'user_id'
		WHEN 'price' THEN r->>'model'
		ELSE coalesce('network/' || (r->>'network'), 'user/' || (r->>'user_id'), 'tier/' || (r->>'tier'), concat('key/', (SELECT encode(k.digest, 'hex') FROM rate_limit_api_keys k
				WHERE k.id = (r->>'key_id')::bigint))) END
$$;
COMMENT ON FUNCTION rate_limit_change_ref IS 'Returns the ref of a changed row. For a ban or override of a deleted key, it is key/ without the digest, which the change of the key itself has.';
CREATE OR REPLACE FUNCTION rate_limit_log_changes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	kind CONSTANT text := TG_ARGV[0];
	actor CONSTANT text := coalesce(nullif(current_setting('role'), 'none'), session_user) || coalesce(' (' || nullif(left(current_setting('rate_limit.person', true), 100), '') || ')', '');
	most CONSTANT int := 1000;
	changed int := 0;
BEGIN
	IF TG_OP <> 'TRUNCATE' THEN
		SELECT count(*) INTO changed FROM (SELECT FROM changed_rows LIMIT most + 1) AS counted;
	END IF;
	IF TG_OP = 'TRUNCATE' OR changed > most THEN
		INSERT INTO rate_limit_changes (kind, by) VALUES (kind, actor);
	ELSIF changed = 0 THEN
		NULL;
	ELSIF TG_OP <> 'UPDATE' THEN
		INSERT INTO rate_limit_changes (kind, ref, by, before, after) SELECT kind, rate_limit_change_ref(kind, c.r), actor, CASE TG_OP WHEN 'DELETE' THEN c.r END, CASE TG_OP WHEN 'INSERT' THEN c.r END
			FROM (SELECT to_jsonb(x) AS r FROM changed_rows AS x) AS c;
	ELSE
		INSERT INTO rate_limit_changes (kind, ref, by, before, after) WITH o AS MATERIALIZED (SELECT to_jsonb(x) AS r, rate_limit_change_ref(kind, to_jsonb(x)) AS ref FROM changed_rows AS x),
				n AS MATERIALIZED (SELECT to_jsonb(x) AS r, rate_limit_change_ref(kind, to_jsonb(x)) AS ref FROM new_rows AS x)
			SELECT kind, coalesce(n.ref, o.ref), actor, o.r, n.r
			FROM o FULL JOIN n ON o.ref = n.ref AND concat(o.r->>TG_ARGV[1], '/', o.r->>TG_ARGV[2]) = concat(n.r->>TG_ARGV[1], '/', n.r->>TG_ARGV[2])
			WHERE o.r - 'updated_at' IS DISTINCT FROM n.r - 'updated_at';
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_log_changes IS 'Writes rate_limit_changes.';
CREATE OR REPLACE FUNCTION rate_limit_touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.updated_at := now();
	RETURN NEW;
END $$;
COMMENT ON FUNCTION rate_limit_touch IS 'Sets updated_at.';
DO $$
DECLARE
	logged record;
	event record;
BEGIN
	FOR logged IN SELECT * FROM (VALUES ('rate_limit_tiers', 'tier', 'tier', ''), ('rate_limit_users', 'user', 'user_id', ''), ('rate_limit_api_keys', 'key', 'id', ''),
		('rate_limit_rules', 'rule', 'name', ''), ('rate_limit_rule_limits', 'limit', 'rule', 'name'), ('rate_limit_overrides', 'override', 'id', ''),
		('rate_limit_bans', 'ban', 'id', ''),
		('rate_limit_prices', 'price', 'model', 'valid')) AS t(name, kind, key1, key2)
	LOOP
		IF logged.kind IN ('user', 'rule', 'price') THEN
			EXECUTE format('CREATE OR REPLACE TRIGGER rate_limit_touch BEFORE UPDATE ON %I FOR EACH ROW WHEN (OLD IS DISTINCT FROM NEW) EXECUTE FUNCTION rate_limit_touch()', logged.name);
		END IF;
		FOR event IN SELECT * FROM (VALUES ('insert', 'REFERENCING NEW TABLE AS changed_rows'), ('delete', 'REFERENCING OLD TABLE AS changed_rows'),
			('update', 'REFERENCING OLD TABLE AS changed_rows NEW TABLE AS new_rows'), ('truncate', '')) AS e(name, transition)
		LOOP
			EXECUTE format('CREATE OR REPLACE TRIGGER rate_limit_log_%s AFTER %s ON %I %s FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_log_changes(%L, %L, %L)',
				event.name, event.name, logged.name, event.transition, logged.kind, logged.key1, logged.key2);
		END LOOP;
	END LOOP;
END $$;
`

const policyUsable = `
CREATE OR REPLACE FUNCTION rate_limit_complete(rule text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	r record;
	fault text;
BEGIN
	SELECT action, settle INTO r FROM rate_limit_rules WHERE name = $1 AND mode <> 'off' FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	PERFORM FROM rate_limit_rule_limits l WHERE l.rule = $1 AND current_setting('transaction_isolation') <> 'read committed' FOR KEY SHARE;
	SELECT CASE WHEN r.action = 'limit' AND count(*) = 0 THEN 'limits: missing: a rule with the action limit must have one, such as per_hour' WHEN r.action <> 'limit' AND count(*) > 0
			THEN format('action: %L: must be limit, because the rule has limits: delete these limits, or make another rule', r.action)
		WHEN r.settle IS NOT NULL AND count(*) FILTER (WHERE l.algorithm <> 'in_flight') = 0 THEN format('settle: %s: must be left out with in_flight: a slot ends with its request', to_json(r.settle))
		WHEN r.settle IS NOT NULL AND count(*) FILTER (WHERE l.unit <> 'requests') > 0 THEN format('settle: %s: must be left out with unit %s: the response reports the cost',
				to_json(r.settle), min(l.unit) FILTER (WHERE l.unit <> 'requests')) END
		INTO fault FROM rate_limit_rule_limits l WHERE l.rule = $1;
	IF fault IS NOT NULL THEN
		RAISE check_violation USING MESSAGE = fault, DETAIL = format('The rule is %L.', $1);
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_complete IS 'Checks a rule that is not off. It fails if a rule with the action limit has no limit, if another rule '
	'has one, or if a rule with settle has a limit of tokens or money, or only limits of requests in flight.';
CREATE OR REPLACE FUNCTION rate_limit_check_complete() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	IF TG_TABLE_NAME = 'rate_limit_rules' THEN
		PERFORM rate_limit_complete(NEW.name);
		RETURN NULL;
	END IF;
	IF TG_OP <> 'INSERT' THEN
		PERFORM rate_limit_complete(OLD.rule);
	END IF;
	IF TG_OP <> 'DELETE' THEN
		PERFORM rate_limit_complete(NEW.rule);
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_check_complete IS 'Refuses rules with an action that does not suit their limits, at the end of the transaction.';
DO $$
DECLARE
	checked record;
BEGIN
	FOR checked IN SELECT * FROM (VALUES ('rate_limit_rules', 'INSERT OR UPDATE OF name, action, mode, settle'), ('rate_limit_rule_limits', 'INSERT OR DELETE OR UPDATE OF rule, unit, '
		'algorithm')) AS t(name, events)
	LOOP
		IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = checked.name::regclass AND tgname = 'rate_limit_complete') THEN
			EXECUTE format('CREATE CONSTRAINT TRIGGER rate_limit_complete AFTER %s ON %I DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION rate_limit_check_complete()', checked.events, checked.name);
		END IF;
	END LOOP;
END $$;
`

const policyViews = `
CREATE OR REPLACE VIEW rate_limit_banned WITH (security_invoker) AS SELECT b.id, CASE WHEN b.network IS NOT NULL THEN 'network' WHEN b.user_id IS NOT NULL THEN 'user' ELSE 'key' END AS kind,
		coalesce(b.network::text, b.user_id, b.key_id::text) AS banned, b.until, CASE WHEN isfinite(b.until) THEN b.until - now() END AS remaining, b.reason, b.banned_at, b.banned_by, b.network, b.user_id, b.key_id
	FROM rate_limit_bans b WHERE b.until > now();
CALL rate_limit_describe('rate_limit_banned', $$
The bans that are in force.
kind: network, user or key.
banned: The network, the user, or the id of the key.
remaining: The time until the ban ends. NULL: never.
$$);
CREATE OR REPLACE FUNCTION rate_limit_counted(count_by text[], key text) RETURNS TABLE (dimension text, part text) LANGUAGE sql IMMUTABLE PARALLEL SAFE BEGIN ATOMIC SELECT CASE WHEN strpos(count_by[1], '|') = 0 THEN count_by[1]
		ELSE split_part(count_by[1], '|', substring(key FROM '^([1-9])[|]')::int) END, CASE WHEN strpos(count_by[1], '|') = 0 THEN key ELSE substr(key, 3) END WHERE cardinality(count_by) = 1;
END;
COMMENT ON FUNCTION rate_limit_counted IS 'Splits a key of one part into the dimension, such as user, and the value. If a rule counts by user|ip, the key 2|192.0.2.1 has the dimension ip. No row for more parts.';
CREATE OR REPLACE VIEW rate_limit_used WITH (security_invoker) AS SELECT l.rule, l.name AS limit_name, c.key COLLATE "C" AS key, l.algorithm, rate_limit_decimal(u.used, l.unit) AS used, rate_limit_decimal(c.held, l.unit) AS held,
		rate_limit_decimal(q.quota, l.unit) AS quota, (100::numeric * (u.used::numeric + c.held) / CASE WHEN q.quota > 0 THEN q.quota ELSE 1 + q.quota END) ::numeric(20, 1) AS percent, u.resets_at, nullif(l.unit, 'requests') AS unit
	FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule CROSS JOIN LATERAL rate_limit_counters('rule/' || coalesce(r.counted_as, r.name) || '/' || l.name, coalesce(l.durable, l.unit <> 'requests')) c LEFT JOIN LATERAL (
		SELECT o.* FROM rate_limit_counted(r.count_by, c.key) d CROSS JOIN LATERAL (SELECT replace(replace(replace(d.part, '%20', ' '), '%3A', ':'), '%25', '%') AS name) n CROSS JOIN LATERAL rate_limit_override_of(l.rule, l.name,
			CASE d.dimension WHEN 'user' THEN coalesce((SELECT u.user_id FROM rate_limit_users u WHERE coalesce(u.counted_as, u.user_id) = n.name), n.name) END,
			CASE WHEN d.dimension = 'key' AND d.part ~ '^[1-9][0-9]{0,17}$' THEN d.part::bigint END) o ) o ON true CROSS JOIN LATERAL (SELECT CASE WHEN o.id IS NULL THEN l.events ELSE o.events END AS events, coalesce(o.burst, l.burst) AS burst) AS a
	CROSS JOIN LATERAL (SELECT CASE WHEN a.events IS NOT NULL THEN coalesce(a.burst, a.events) END AS quota) AS q CROSS JOIN LATERAL rate_limit_usage_of(l.algorithm, a.events, a.burst,
		(date_part('epoch', l.per) * 1000000)::bigint, c.count, c.prev_count, c.window_start, c.tokens, c.last_refill, c.remainder, c.hits, c.slots, c.expires_at) AS u;
CALL rate_limit_describe('rate_limit_used', $$
The counters of rules, with the used part of their quota. If a counter is of one user or one API key, an override may replace the amount of the limit.
rule: The rule.
algorithm: The algorithm of the limit.
limit_name: The limit of the rule.
key: The key of the counter.
used: The used units of the quota now.
held: The units that running requests hold, of a limit of tokens or money.
quota: The full quota: the burst, or the events. NULL: unlimited.
percent: used and held as a percentage of quota, or of 1 if quota is 0.
resets_at: As in rate_limit_usage_of.
unit: What the limit counts. NULL: requests.
$$);
CREATE OR REPLACE VIEW rate_limit_near WITH (security_invoker) AS SELECT u.rule, u.limit_name, u.key, u.algorithm, u.used, u.held, u.quota, u.percent FROM rate_limit_used u WHERE u.used + u.held > 0 AND u.used + u.held >= 0.8 * u.quota;
CALL rate_limit_describe('rate_limit_near', $$
The counters of rules with at least 80 % of their quota used or held. Unlimited counters do not appear.
$$);
CREATE OR REPLACE VIEW rate_limit_rule_warnings WITH (security_invoker) AS SELECT r.name AS rule, 'tiers' AS field, 'tiers: ' || string_agg(quote_literal(t), ', ' ORDER BY t) || ': not in rate_limit_tiers, so no user has them' AS warning
	FROM rate_limit_rules r CROSS JOIN unnest(r.tiers) AS t WHERE NOT EXISTS (SELECT FROM rate_limit_tiers k WHERE k.tier = t) GROUP BY r.name UNION ALL SELECT l.rule, l.name, l.name ||
		': 0: refuses every request, and no override has another amount: to refuse all requests, use action=block' FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule
	WHERE l.events = 0 AND l.on_exceed = 'refuse' AND r.mode <> 'off' AND NOT EXISTS (SELECT FROM rate_limit_overrides o WHERE o.rule = l.rule AND o.limit_name = l.name AND o.valid @> now() AND o.events IS DISTINCT FROM 0)
		AND NOT EXISTS (SELECT FROM rate_limit_rules o WHERE o.family = r.family AND o.priority > r.priority AND o.mode <> 'off') UNION ALL SELECT m[1], 'proxies', format('%s cannot use it: %s', p.node, m[2])
	FROM rate_limit_proxies p, unnest(p.problems) AS problem, regexp_match(problem, '^rule ([^:,]+)[:,] (.*)$') AS m WHERE p.live AND m IS NOT NULL;
CALL rate_limit_describe('rate_limit_rule_warnings', $$
Rules that proxies cannot use, or that probably do not have the intended effect.
field: What the warning is about: a column of the rule, the name of a limit, or proxies.
warning: The text of the warning.
$$);
CREATE OR REPLACE FUNCTION rate_limit_noticed() RETURNS TABLE (prefix text, key text, durable boolean, unit text, quota bigint, percents bigint[])
	LANGUAGE sql STABLE AS $$
	SELECT 'rule/' || coalesce(r.counted_as, r.name) || '/' || l.name, u.key, coalesce(l.durable, l.unit <> 'requests'), l.unit,
		(u.quota * CASE l.unit WHEN 'money' THEN 1000000 ELSE 1 END)::bigint, l.notify
	FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule AND r.mode <> 'off' JOIN rate_limit_used u ON (u.rule, u.limit_name) = (l.rule, l.name)
	WHERE l.notify IS NOT NULL AND u.quota > 0 AND u.used * 100 >= u.quota * (SELECT min(p) FROM unnest(l.notify) p)
$$;
COMMENT ON FUNCTION rate_limit_noticed IS 'The counters of limits with notify that have reached one of its percentages.';
`

const policyZones = `
CREATE OR REPLACE FUNCTION rate_limit_check_zone() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	known CONSTANT text := rate_limit_known_zone(NEW.time_zone);
BEGIN
	IF TG_OP = 'UPDATE' AND NEW.time_zone = OLD.time_zone THEN
		RETURN NEW; -- It may be from a dump.
	ELSIF known IS NULL THEN
		RAISE invalid_parameter_value USING MESSAGE = format('time_zone: %s: must be UTC or a place of the IANA time zones, such as Europe/Berlin, that the server knows', to_json(NEW.time_zone));
	END IF;
	NEW.time_zone := known;
	RETURN NEW;
END $$;
COMMENT ON FUNCTION rate_limit_check_zone IS 'Replaces the links of time zones, and refuses zones that the server does not know.';
DO $$
DECLARE
	zoned text;
	old text;
BEGIN
	FOREACH zoned IN ARRAY '{rate_limit_users,rate_limit_rule_limits}'::text[] LOOP
		EXECUTE format('CREATE OR REPLACE TRIGGER rate_limit_check_zone BEFORE INSERT OR UPDATE OF time_zone ON %I FOR EACH ROW WHEN (NEW.time_zone <> ''UTC'' AND current_setting(''search_path'') '
			'NOT IN (%L, %L)) EXECUTE FUNCTION rate_limit_check_zone()', zoned, '', '""');
		FOR old IN SELECT c.conname FROM pg_constraint c WHERE c.conrelid = zoned::regclass AND c.conname LIKE 'time\_zone\_must\_%' LOOP
			EXECUTE format('ALTER TABLE %I DROP CONSTRAINT %I', zoned, old);
			EXECUTE format('UPDATE %I SET time_zone = rate_limit_known_zone(time_zone) WHERE time_zone <> ''UTC'' AND time_zone <> rate_limit_known_zone(time_zone)', zoned);
		END LOOP;
	END LOOP;
END $$;
`
