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
