-- A column without a comment makes the text NULL.
SELECT
	string_agg(format(E'### %s\n\n| column | type | default | meaning |\n|---|---|---|---|\n'
		'| | | | **%s** |\n%s\n', relation, obj_description(relation, 'pg_class'), columns), E'\n'
		ORDER BY place) FROM (
	SELECT place, relation, CASE WHEN bool_and(description IS NOT NULL) THEN string_agg(
		concat('| ', c || name || c, ' | ', type, ' | ', c
			|| regexp_replace(default_value, '^''(.*)''::.*$', '\1') || c,
			' | ', replace(description, '|', '\|'), ' |'), E'\n' ORDER BY position) END AS columns
	FROM (SELECT place, relation, position, name, type, default_value, description
		FROM rate_limit_policy_columns
		UNION ALL
		SELECT 100 + array_position(names, attrelid::regclass::text), attrelid::regclass, attnum,
			attname::text, format_type(atttypid, atttypmod), pg_get_expr(d.adbin, d.adrelid),
			col_description(attrelid, attnum)
		FROM (SELECT '{rate_limit_bans,rate_limit_notices,rate_limit_ledger,rate_limit_audit,
			rate_limit_metrics}'::text[] AS names) AS n,
			pg_attribute a LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
		WHERE attrelid::regclass::text = ANY (names) AND attnum > 0 AND NOT attisdropped
	) AS q, chr(96) AS c GROUP BY place, relation) AS t
