-- The rights of roles, by kind. The registry, the history and the policy each have this file, because each
-- may be alone in a database. end.sql grants recorded roles their rights on what a part has added.

CREATE TABLE IF NOT EXISTS rate_limit_grants (
	role text,
	kind text,
	PRIMARY KEY (role, kind)
);
CALL rate_limit_describe('rate_limit_grants', $$
The roles that have rights by rate_limit_grant. Each migration grants these rights again.
role: The role.
kind: proxy, administrator or reader.
$$);

-- A pattern matches names without rate_limit_. The name of a table of a shard follows shard/. After the name
-- of a function, /owner or /caller names the role that gives it its rights. Nobody gets rights on partitions.
-- Citus before 13.1 refuses rights on columns of shards. Citus also refuses rights on rate_limit_read_report,
-- which all roles may call.
CREATE OR REPLACE FUNCTION rate_limit_rights(kind text) RETURNS TABLE (privileges text, object text)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	schemas oid[] := ARRAY(SELECT relnamespace FROM pg_class WHERE oid = 'rate_limit_grants'::regclass);
BEGIN
	IF to_regprocedure('rate_limit_shards()') IS NOT NULL THEN
		schemas := schemas || ARRAY(SELECT n.oid FROM rate_limit_shards() s
			JOIN pg_namespace n ON n.nspname = s.schema);
	END IF;
	RETURN QUERY SELECT r.privileges, o.object FROM (VALUES
		('proxy', '(shard/)?(ephemeral|durable|processes)|nodes', 'SELECT, INSERT, UPDATE, DELETE'),
		('proxy', '(shard/)?ledger', 'SELECT, INSERT'),
		('proxy', 'secrets|tiers|users|api_keys|rules|rule_limits|overrides|bans|prices', 'SELECT'),
		('proxy', 'changes', 'SELECT (seq, xid, kind, ref)'),
		('proxy', '(begin_batch|drop_expired|forget|ledger_upkeep|notice|notice_upkeep|record_audit|'
			'record_metrics|retain|upkeep)/owner', 'EXECUTE'),
		('reader', '(?!secrets)(shard/)?[a-z_]+', 'SELECT'),
		('reader', '.*/caller', 'EXECUTE'),
		('administrator', 'tiers|users|api_keys|rules|rule_limits|overrides|bans|prices',
			'INSERT, UPDATE, DELETE'),
		('administrator', 'ephemeral|durable', 'DELETE, UPDATE (slot)'),
		('administrator', 'shard/(ephemeral|durable)', 'DELETE, UPDATE'),
		('administrator', 'retention', 'UPDATE (keep, set_by, set_at)'),
		('administrator', 'ledger_retention', 'UPDATE (keep)'),
		('administrator', 'notices', 'UPDATE (taken_at)'),
		('administrator', '(drop_expired|ledger_upkeep|upkeep)/owner', 'EXECUTE')
	) AS r(kind, names, privileges) JOIN (
		SELECT CASE c.relnamespace WHEN schemas[1] THEN '' ELSE 'shard/' END || substr(c.relname, 12) AS name,
			c.oid::regclass::text AS object
		FROM pg_class c WHERE c.relnamespace = ANY (schemas) AND c.relname LIKE 'rate\_limit\_%'
			AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition AND pg_has_role(c.relowner, 'USAGE')
		UNION ALL
		SELECT substr(p.proname, 12) || CASE WHEN p.prosecdef THEN '/owner' ELSE '/caller' END,
			'FUNCTION ' || p.oid::regprocedure
		FROM pg_proc p WHERE p.pronamespace = schemas[1] AND p.proname LIKE 'rate\_limit\_%'
			AND p.prokind = 'f' AND pg_has_role(p.proowner, 'USAGE')
			AND NOT has_function_privilege('public', p.oid, 'EXECUTE')
	) AS o ON o.name ~ format('^(%s)$', r.names)
	WHERE r.kind = $1 OR r.kind = 'reader' AND $1 = 'administrator'
	UNION ALL
	SELECT 'USAGE', format('SCHEMA %I', n.nspname) FROM pg_namespace n
	WHERE n.oid = ANY (schemas) AND pg_has_role(n.nspowner, 'USAGE') AND NOT EXISTS (SELECT FROM pg_class c
		WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v')
			AND c.relname NOT LIKE 'rate\_limit\_%');
END $$;
COMMENT ON FUNCTION rate_limit_rights IS
	'The rights of a kind of role on tables, views and functions, and USAGE on a schema of their own.';

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
	FOR it IN SELECT * FROM rate_limit_rights($2) LOOP
		EXECUTE format('GRANT %s ON %s TO %I', it.privileges, it.object, $1);
	END LOOP;
	INSERT INTO rate_limit_grants VALUES ($1, $2) ON CONFLICT DO NOTHING;
END $$;
COMMENT ON FUNCTION rate_limit_grant IS
	'Grants a role the rights of a proxy, of an administrator, who changes the policy, or of a reader, who '
	'reads all but secrets, and records that. Each migration grants them again. For the owner of the tables.';

CREATE OR REPLACE FUNCTION rate_limit_revoke(role text, kind text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	it record;
BEGIN
	DELETE FROM rate_limit_grants g WHERE (g.role, g.kind) = ($1, $2);
	IF NOT FOUND THEN
		RAISE EXCEPTION 'role: %: rate_limit_grant has given it no rights of the kind %', to_json($1),
			to_json($2) USING ERRCODE = 'undefined_object';
	END IF;
	FOR it IN SELECT t.* FROM rate_limit_rights($2) t, pg_roles r WHERE r.rolname = $1 LOOP
		EXECUTE format('REVOKE %s ON %s FROM %I', it.privileges, it.object, $1);
	END LOOP;
	PERFORM rate_limit_grant(g.role, g.kind) FROM rate_limit_grants g JOIN pg_roles r ON r.rolname = g.role
		WHERE g.role = $1;
END $$;
COMMENT ON FUNCTION rate_limit_revoke IS
	'Takes back what rate_limit_grant gave. Rights that another kind of the role has too stay.';
