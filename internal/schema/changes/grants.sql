-- The rights of roles, by kind. end.sql grants recorded roles their rights on what a migration has added.

-- TABLE rate_limit_grants: The roles that have rights by rate_limit_grant. Each migration grants these rights
-- again.
--   role: The role.
--   kind: proxy, administrator or reader.

-- The calling role, even in a function with the rights of the owner.
CREATE OR REPLACE FUNCTION rate_limit_caller() RETURNS text LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT coalesce(nullif(current_setting('role'), 'none'), session_user)
$$;

-- Whether tables, by their names without rate_limit_, are in this database, and the role may read them.
CREATE OR REPLACE FUNCTION rate_limit_may_read(VARIADIC tables text[]) RETURNS boolean LANGUAGE sql STABLE
RETURN (SELECT bool_and(coalesce(has_table_privilege(to_regclass('rate_limit_' || t), 'SELECT'), false))
	FROM unnest(tables) t);

-- Whether all roles may call a function.
--
-- All roles may call functions that compute or only fail, and those that views and constraints call with the
-- rights of the role that reads or writes.
CREATE OR REPLACE FUNCTION rate_limit_is_for_all(function pg_proc) RETURNS boolean LANGUAGE sql STABLE
RETURN $1.provolatile = 'i' OR $1.prosqlbody IS NOT NULL OR substr($1.proname, 12) IN ('behind',
	'billing_differs', 'calendars', 'counted_prefix', 'counters', 'exposed', 'has_applied', 'hidden',
	'key_name', 'lineage', 'lost_units', 'override_of', 'price_age', 'read_report', 'refuse', 'reported_at',
	'rights', 'schemas', 'surplus', 'unknown_zones', 'unlimited', 'unpriced', 'vacuum_holders');

-- The schema of the tables, and then the schemas of the shards.
CREATE OR REPLACE FUNCTION rate_limit_schemas() RETURNS oid[] LANGUAGE plpgsql STABLE AS $$
DECLARE
	own CONSTANT oid[] := ARRAY(SELECT relnamespace FROM pg_class WHERE oid = 'rate_limit_grants'::regclass);
BEGIN
	IF to_regprocedure('rate_limit_shards()') IS NULL THEN
		RETURN own;
	END IF;
	RETURN own || ARRAY(SELECT n.oid FROM rate_limit_shards() s JOIN pg_namespace n ON n.nspname = s.schema);
END $$;

-- The rights of a kind of role, or of all, on tables, views and functions, and on a schema of their own.
--
-- The names lack rate_limit_, and a table of a shard has the name shard/NAME. NULL stands for all tables and
-- views but secrets and forgotten names, or for all functions that run with the rights of their caller.
-- Nobody gets rights on partitions, also once they are detached. Citus before 13.1 refuses rights on columns
-- of shards. Citus also refuses rights on rate_limit_read_report, which all roles may call.
CREATE OR REPLACE FUNCTION rate_limit_rights(kind text DEFAULT NULL)
	RETURNS TABLE (kinds text[], privileges text, object text, owner oid) LANGUAGE plpgsql STABLE AS $$
DECLARE
	schemas CONSTANT oid[] := rate_limit_schemas();
BEGIN
	RETURN QUERY SELECT r.kinds, r.privileges, o.object, o.owner FROM (VALUES
		('{proxy}'::text[], '{ephemeral,durable,processes,shard/ephemeral,shard/durable,shard/processes}'
			::text[], 'SELECT, INSERT, UPDATE, DELETE'),
		('{proxy}', '{ledger}', 'SELECT (id), INSERT (day, id, time, user_id, key_id, ancestors, model, '
			'input, cache_read, cache_write, output, money, charges, cache_write_1h, audio_input, '
			'audio_cache_read, audio_output, image_input, image_output, search, estimated_input, '
			'estimated_output, estimated_money, remainder, tier, answered, price, price_valid, lines)'),
		('{proxy}', '{shard/ledger}', 'SELECT, INSERT'),
		('{proxy}', '{secrets,tiers,users,api_keys,rules,rule_limits,overrides,bans,prices}', 'SELECT'),
		('{proxy}', '{changes}', 'SELECT (seq, xid, kind, ref)'),
		('{proxy}', '{begin_batch,drop_expired,forget,heartbeat,ledger_upkeep,live_proxies,lost_upkeep,'
			'notice,notice_upkeep,record_audit,record_metrics,retain,totals_upkeep,upkeep}', 'EXECUTE'),
		('{reader,administrator}', NULL, 'SELECT'),
		('{reader,administrator}', NULL, 'EXECUTE'),
		('{administrator}', '{tiers,users,api_keys,rules,rule_limits,overrides,bans,prices}',
			'INSERT, UPDATE, DELETE'),
		('{administrator}', '{ephemeral,durable}', 'DELETE, UPDATE (ord)'),
		('{administrator}', '{shard/ephemeral,shard/durable}', 'DELETE, UPDATE'),
		('{administrator}', '{retention}', 'UPDATE (keep, set_by, set_at)'),
		('{administrator}', '{ledger_retention}', 'UPDATE (keep, currency)'),
		('{administrator}', '{notices}', 'UPDATE (taken_at, tried_at, try_at, error)'),
		('{administrator}', '{correct,drop_expired,ledger_upkeep,reset_counters,totals_upkeep,upkeep}',
			'EXECUTE')
	) AS r(kinds, names, privileges) JOIN (
		SELECT CASE c.relnamespace WHEN schemas[1] THEN '' ELSE 'shard/' END || substr(c.relname, 12) AS name,
			c.oid::regclass::text AS object, c.relowner AS owner, false AS is_function,
			c.relname !~ '_(secrets|forgotten)$|[0-9]' AS is_read
		FROM pg_class c WHERE c.relnamespace = ANY (schemas) AND c.relname LIKE 'rate\_limit\_%'
			AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
		UNION ALL
		SELECT substr(p.proname, 12), 'FUNCTION ' || p.oid::regprocedure, p.proowner, true, NOT p.prosecdef
		FROM pg_proc p WHERE p.pronamespace = schemas[1] AND p.proname LIKE 'rate\_limit\_%'
			AND p.prokind = 'f' AND NOT rate_limit_is_for_all(p)
	) AS o ON o.is_function = (r.privileges = 'EXECUTE') AND coalesce(o.name = ANY (r.names), o.is_read)
	WHERE $1 IS NULL OR $1 = ANY (r.kinds)
	UNION ALL
	SELECT NULL, 'USAGE', format('SCHEMA %I', n.nspname), n.nspowner FROM pg_namespace n
	WHERE n.oid = ANY (schemas) AND NOT EXISTS (SELECT FROM pg_class c
		WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v')
			AND c.relname NOT LIKE 'rate\_limit\_%');
END $$;

-- The rights of roles on tables, columns, sequences and functions that rate_limit_grant has not granted.
--
-- Rights on all but schemas. The owner, members of its role and superusers need no grant. ids limits the
-- objects, which may then be in any schema, and functions for all roles are among them, without what PUBLIC
-- has. grantor is NULL for the owner. pg_attribute is scanned, because pg_shdepend lacks PUBLIC.
CREATE OR REPLACE FUNCTION rate_limit_surplus(ids oid[] DEFAULT NULL)
	RETURNS TABLE (role text, privilege text, object text, grantable boolean, grantor text)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	schemas CONSTANT oid[] := rate_limit_schemas();
BEGIN
	RETURN QUERY WITH relations AS MATERIALIZED (SELECT c.* FROM pg_class c
		WHERE c.relname LIKE 'rate\_limit\_%' AND c.relkind IN ('r', 'p', 'v', 'S')
			AND (c.oid = ANY (ids) OR ids IS NULL AND c.relnamespace = ANY (schemas))
	), columns AS MATERIALIZED (SELECT * FROM pg_attribute WHERE attacl IS NOT NULL
	), granted AS MATERIALIZED (
		SELECT g.role, r.object, r.privileges FROM rate_limit_rights() r JOIN rate_limit_grants g
			ON g.kind = ANY (r.kinds)
	)
	SELECT coalesce(r.rolname::text, 'public'),
		a.privilege_type || coalesce(' (' || quote_ident(o.name) || ')', ''), o.object, a.is_grantable,
		CASE WHEN a.grantor <> o.owner THEN a.grantor::regrole::text END
	FROM (
		SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END || c.oid::regclass AS object,
			NULL::name AS name, c.relowner AS owner, c.relacl AS acl FROM relations c
			WHERE c.relacl IS NOT NULL
		UNION ALL
		SELECT c.oid::regclass::text, t.attname, c.relowner, t.attacl FROM relations c
			JOIN columns t ON t.attrelid = c.oid
		UNION ALL
		SELECT 'FUNCTION ' || p.oid::regprocedure, NULL, p.proowner,
			ARRAY(SELECT e.acl FROM unnest(coalesce(p.proacl, acldefault('f', p.proowner))) AS e (acl)
				WHERE NOT (rate_limit_is_for_all(p) AND e.acl::text LIKE '=%')) FROM pg_proc p
		WHERE p.proname LIKE 'rate\_limit\_%' AND p.prokind <> 'p' AND (p.oid = ANY (ids)
			OR ids IS NULL AND p.pronamespace = schemas[1] AND NOT rate_limit_is_for_all(p))
	) AS o CROSS JOIN aclexplode(o.acl) AS a LEFT JOIN pg_roles r ON r.oid = a.grantee
	WHERE pg_has_role(r.oid, o.owner, 'USAGE') IS NOT TRUE AND NOT EXISTS (SELECT FROM granted g
		WHERE g.role = r.rolname AND g.object = o.object AND a.grantor = o.owner AND NOT a.is_grantable
			AND (a.privilege_type = ANY (string_to_array(g.privileges, ', '))
				OR o.name = ANY (string_to_array(substring(g.privileges
					FROM a.privilege_type || ' \(([^)]*)'), ', '))));
END $$;

-- Takes back what rate_limit_surplus returns. Migrations and upkeep call it for what they create.
CREATE OR REPLACE FUNCTION rate_limit_strip(ids oid[], role text DEFAULT NULL) RETURNS boolean
	LANGUAGE plpgsql AS $$
DECLARE
	it record;
BEGIN
	FOR it IN SELECT s.role, s.object, string_agg(s.privilege, ', ') AS privileges
		FROM rate_limit_surplus($1) s WHERE s.role = coalesce($2, s.role) GROUP BY 1, 2
	LOOP
		EXECUTE format('REVOKE %s ON %s FROM %I CASCADE', it.privileges, it.object, it.role);
	END LOOP;
	RETURN FOUND;
END $$;

-- Grants a role the rights of a proxy, of an administrator, who changes the policy, or of a reader, who reads
-- all but secrets, and records that. Each migration grants them again. For the owner of the tables.
CREATE OR REPLACE FUNCTION rate_limit_grant(role text, kind text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	it record;
BEGIN
	IF ($2 IN ('proxy', 'administrator', 'reader')) IS NOT TRUE THEN
		RAISE EXCEPTION 'kind: %: must be proxy, administrator or reader', to_json($2)
			USING ERRCODE = 'invalid_parameter_value';
	ELSIF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = $1) THEN
		RAISE EXCEPTION 'role: %: there is no such role', to_json($1) USING ERRCODE = 'undefined_object';
	END IF;
	FOR it IN SELECT * FROM rate_limit_rights($2) r WHERE pg_has_role(r.owner, 'USAGE') LOOP
		EXECUTE format('GRANT %s ON %s TO %I', it.privileges, it.object, $1);
	END LOOP;
	INSERT INTO rate_limit_grants VALUES ($1, $2) ON CONFLICT DO NOTHING;
END $$;

-- Takes back what rate_limit_grant gave, and what other roles granted, with the grant options for that.
-- Rights that another kind of the role has too stay. Without kind: takes back all other rights.
CREATE OR REPLACE FUNCTION rate_limit_revoke(role text, kind text DEFAULT NULL) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	it record;
	kept text;
BEGIN
	DELETE FROM rate_limit_grants g WHERE (g.role, g.kind) = ($1, $2);
	IF NOT FOUND AND ($2 IS NOT NULL OR NOT rate_limit_strip(NULL, $1)) THEN
		RAISE EXCEPTION 'role: %: rate_limit_grant has given it %', to_json($1),
			coalesce('no rights of the kind ' || to_json($2), 'all rights that it has')
			USING ERRCODE = 'undefined_object';
	END IF;
	FOR it IN SELECT t.* FROM rate_limit_rights($2) t, pg_roles r WHERE r.rolname = $1 AND $2 IS NOT NULL
		AND pg_has_role(t.owner, 'USAGE') LOOP
		EXECUTE format('REVOKE %s ON %s FROM %I CASCADE', it.privileges, it.object, $1);
	END LOOP;
	-- What another role granted ends only with the grant options that it came through. A right on a column
	-- outlives an option on the table, and ends with an option on the column.
	FOR it IN WITH RECURSIVE surplus AS MATERIALIZED (SELECT * FROM rate_limit_surplus() s
			WHERE s.grantor IS NOT NULL
		), through AS (
			SELECT s.privilege, s.object, s.grantor FROM surplus s WHERE s.role = $1
			UNION SELECT s.privilege, s.object, s.grantor FROM through t JOIN surplus s
				ON quote_ident(s.role) = t.grantor AND (s.privilege, s.object) = (t.privilege, t.object)
		) SELECT t.*, t.privilege LIKE '%(%' AS of_column FROM through t
	LOOP
		IF it.of_column THEN
			EXECUTE format('GRANT %s ON %s TO %s WITH GRANT OPTION', it.privilege, it.object, it.grantor);
		END IF;
		EXECUTE format('REVOKE %s %s ON %s FROM %s CASCADE', CASE WHEN NOT it.of_column
			THEN 'GRANT OPTION FOR' END, it.privilege, it.object, it.grantor);
	END LOOP;
	PERFORM rate_limit_grant(g.role, g.kind) FROM rate_limit_grants g JOIN pg_roles r ON r.rolname = g.role;
	SELECT string_agg(format('%s on %s', s.privilege, s.object) || coalesce(' from ' || s.grantor, ''), ', ')
		INTO kept FROM rate_limit_surplus() s WHERE s.role = $1 AND ($2 IS NULL OR s.grantor IS NOT NULL);
	IF kept IS NOT NULL THEN
		RAISE EXCEPTION 'role: %: it keeps %, which only the role that granted it can take back',
			to_json($1), kept USING ERRCODE = 'insufficient_privilege';
	END IF;
END $$;
