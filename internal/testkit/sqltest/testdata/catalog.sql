SELECT string_agg(line, E'\n' ORDER BY line) FROM (
	SELECT concat_ws(' ', 'column', a.attrelid::regclass || '.' || a.attname, a.attnum,
		format_type(a.atttypid, a.atttypmod), 'COLLATE ' || nullif(a.attcollation, 0)::regcollation,
		a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attacl) AS line
		FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attrelid::regclass::text LIKE 'rate\_limit\_%' AND a.attnum > 0 AND NOT a.attisdropped
	UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
		FROM pg_constraint WHERE conrelid::regclass::text LIKE 'rate\_limit\_%' AND contype <> 'n'
	UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
	UNION ALL SELECT 'function ' || pg_get_functiondef(oid) || coalesce(proacl::text, '') FROM pg_proc
		WHERE proname LIKE 'rate\_limit\_%' AND prokind = 'f'
	UNION ALL SELECT 'aggregate ' || a.aggfnoid || ' ' || a.aggtransfn || ' ' || coalesce(a.agginitval, '')
		FROM pg_aggregate a WHERE a.aggfnoid::text LIKE 'rate\_limit\_%'
	UNION ALL SELECT 'view ' || pg_get_viewdef(oid) FROM pg_class WHERE relkind = 'v'
		AND relname LIKE 'rate\_limit\_%'
	UNION ALL SELECT concat_ws(' ', 'table', relname, relpersistence, reloptions, relacl) FROM pg_class
		WHERE relkind IN ('r', 'p') AND relname LIKE 'rate\_limit\_%'
	UNION ALL SELECT 'index ' || pg_get_indexdef(indexrelid) FROM pg_index
		WHERE indrelid::regclass::text LIKE 'rate\_limit\_%'
	UNION ALL SELECT concat_ws(' ', 'comment', pg_describe_object(classoid, objoid, objsubid), description)
		FROM pg_description WHERE objoid >= 16384
) AS lines
