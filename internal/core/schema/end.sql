-- The last commands of each part. Functions get the search_path of their own schema. Otherwise the caller of
-- a function with the rights of the owner could make it use other tables through the caller's search_path.
-- Only the owner may call functions without a grant.
--
-- A body that is parsed when the function is created, by RETURN or BEGIN ATOMIC, needs no search_path, which
-- would prevent Postgres from inlining it. An IMMUTABLE function uses no table. All roles may call both
-- kinds, because views and constraints call them with the rights of the reader or the writer. All roles may
-- also call rate_limit_counters and rate_limit_override_of, which name their schema, and rate_limit_behind.

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

-- Columns of views without a comment get the comment of the column with the same name in the view's tables
-- and views.

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
