-- What the migration and the upkeep have made, and how it is dropped. Each of these has a comment, which a partition of
-- the audit log that was detached has not.

CREATE OR REPLACE FUNCTION rate_limit_installed() RETURNS TABLE (kind text, name text) LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
	IF to_regprocedure('rate_limit_parts()') IS NOT NULL THEN
		RETURN QUERY SELECT 'schema', quote_ident(p.schema) FROM rate_limit_parts() p ORDER BY 2;
	END IF;
	RETURN QUERY SELECT CASE c.relkind WHEN 'v' THEN 'view' ELSE 'table' END, format('%I.%I', c.relnamespace::regnamespace, c.relname) FROM pg_class c
		WHERE c.relname LIKE 'rate\_limit\_%' AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition AND pg_table_is_visible(c.oid)
			AND (obj_description(c.oid, 'pg_class') IS NOT NULL OR c.relname ~ '^rate_limit_audit_[0-9]{8}(_[0-9]+)?$')
		ORDER BY c.relkind = 'v' DESC, 2;
	RETURN QUERY SELECT CASE p.prokind WHEN 'a' THEN 'aggregate' ELSE 'function' END,
			format('%I.%I(%s)', p.pronamespace::regnamespace, p.proname, pg_get_function_identity_arguments(p.oid)) FROM pg_proc p
		WHERE p.proname LIKE 'rate\_limit\_%' AND pg_function_is_visible(p.oid) AND obj_description(p.oid, 'pg_proc') IS NOT NULL ORDER BY 1, 2;
END $$;
COMMENT ON FUNCTION rate_limit_installed() IS 'What rate_limit_uninstall drops. Partitions go with their table, and triggers and indexes as well.';

CREATE OR REPLACE FUNCTION rate_limit_uninstall() RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '10s' AS $$
DECLARE
	live CONSTANT text := (SELECT string_agg(p.node, ', ' ORDER BY p.node) FROM rate_limit_proxies p WHERE p.live);
	command text;
BEGIN
	IF live IS NOT NULL THEN
		RAISE EXCEPTION 'proxies are running: %. Stop them, and wait for 10 seconds', live USING ERRCODE = 'object_in_use';
	END IF;
	FOREACH command IN ARRAY ARRAY(SELECT concat('DROP ', i.kind, ' ', string_agg(i.name, ', '), CASE i.kind WHEN 'schema' THEN ' CASCADE' END)
		FROM rate_limit_installed() i GROUP BY i.kind ORDER BY array_position('{schema,view,table,aggregate,function}', i.kind))
	LOOP
		EXECUTE command;
	END LOOP;
END $$;
REVOKE ALL ON FUNCTION rate_limit_uninstall() FROM PUBLIC;
COMMENT ON FUNCTION rate_limit_uninstall() IS 'Drops all tables and functions with all rows, or nothing. It fails if a proxy runs, or if something else depends on one of them.';
