-- These commands end each part of the schema: the registry, the history and the policy. Each function gets a
-- fixed search_path. Without one, a function with the rights of the owner would look up tables in the
-- caller's search_path, where a caller can put tables of its own. Only the owner may call functions without a
-- grant.
--
-- A body that is parsed when the function is created, by RETURN or BEGIN ATOMIC, needs no search_path, and
-- must not have one, because Postgres would then not inline the function. An IMMUTABLE function uses no
-- table. All roles may call functions of these two kinds, because views and constraints call them with the
-- rights of the role that reads or writes. For the same reason, all roles may call rate_limit_behind, and
-- also rate_limit_counters and rate_limit_override_of, which name their schema and so need no search_path.

DO $$
DECLARE
	function record;
BEGIN
	FOR function IN SELECT p.oid::regprocedure AS signature, p.proname AS name FROM pg_proc p
		WHERE p.pronamespace = to_regnamespace(quote_ident(current_schema()))
			AND p.proname LIKE 'rate\_limit\_%'
			AND p.proname NOT IN ('rate_limit_counters', 'rate_limit_override_of')
			AND p.provolatile <> 'i' AND p.prosqlbody IS NULL AND pg_has_role(p.proowner, 'USAGE')
			AND NOT EXISTS (SELECT FROM unnest(p.proconfig) AS s WHERE s LIKE 'search_path=%')
	LOOP
		EXECUTE format('ALTER ROUTINE %s SET search_path = pg_catalog, %I, pg_temp', function.signature,
			current_schema());
		IF function.name <> 'rate_limit_behind' THEN
			EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', function.signature);
		END IF;
	END LOOP;
END $$;

-- A column of a view without a comment gets the comment of the column with the same name in a table or view
-- that the view reads.

DO $$
DECLARE
	described record;
BEGIN
	FOR described IN SELECT u.view_name, u.column_name, min(col_description(t.attrelid, t.attnum)) AS text
		FROM information_schema.view_column_usage u
		JOIN pg_attribute t ON t.attrelid = to_regclass(quote_ident(u.table_name)) AND t.attname =
			u.column_name
		JOIN pg_attribute a ON a.attrelid = to_regclass(quote_ident(u.view_name)) AND a.attname =
			u.column_name
		WHERE u.view_schema = current_schema() AND u.view_name LIKE 'rate\_limit\_%'
			AND col_description(a.attrelid, a.attnum) IS NULL GROUP BY 1, 2
	LOOP
		EXECUTE format('COMMENT ON COLUMN %I.%I IS %L', described.view_name, described.column_name,
			described.text);
	END LOOP;
END $$;
DROP PROCEDURE rate_limit_describe;
