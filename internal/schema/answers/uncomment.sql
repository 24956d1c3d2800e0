-- Columns of views lose their comments. The files of the views then give them their own, and comments.sql the
-- comments of tables.

DO $$
DECLARE
	described record;
BEGIN
	FOR described IN SELECT c.relname AS view_name, a.attname AS column_name FROM pg_class c
		JOIN pg_attribute a ON a.attrelid = c.oid AND col_description(c.oid, a.attnum) IS NOT NULL
		WHERE c.relkind = 'v' AND c.relname LIKE 'rate\_limit\_%' AND pg_has_role(c.relowner, 'USAGE')
			AND c.relnamespace = to_regnamespace(quote_ident(current_schema()))
	LOOP
		EXECUTE format('COMMENT ON COLUMN %I.%I IS NULL', described.view_name, described.column_name);
	END LOOP;
END $$;
