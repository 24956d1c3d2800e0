-- Drops all tables, views, functions and types of pg-ratelimit with all rows, or nothing if something else
-- depends on one of them. Run it as the owner of the tables. Roles and archives stay.
DO $$
DECLARE
	command text;
BEGIN
	IF to_regprocedure('rate_limit_shards()') IS NOT NULL THEN
		FOR command IN SELECT format('DROP SCHEMA %I CASCADE', schema) FROM rate_limit_shards() LOOP
			EXECUTE command;
		END LOOP;
	END IF;
	FOREACH command IN ARRAY ARRAY(
		SELECT format('DROP %s %s', kind, string_agg(name, ', ')) FROM (
			SELECT CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, oid::regclass::text FROM pg_class
			WHERE relname LIKE 'rate\_limit\_%' AND relkind IN ('r', 'p', 'v') AND NOT relispartition
				AND pg_table_is_visible(oid)
				AND (obj_description(oid, 'pg_class') IS NOT NULL
					OR relname ~ '^rate_limit_audit_[0-9]{8}(_[0-9]+)?$')
			UNION ALL
			-- A function that takes or returns rows of a table goes before the table.
			SELECT CASE WHEN EXISTS (SELECT FROM pg_class c WHERE c.relkind = ANY ('{r,p}')
				AND c.reltype IN (prorettype, proargtypes[0])) THEN 'FUNCTION' ELSE 'ROUTINE' END,
				oid::regprocedure::text FROM pg_proc
			WHERE proname LIKE 'rate\_limit\_%' AND pg_function_is_visible(oid)
				AND obj_description(oid, 'pg_proc') IS NOT NULL
			UNION ALL
			SELECT 'TYPE', oid::regtype::text FROM pg_type
			WHERE typname LIKE 'rate\_limit\_%' AND pg_type_is_visible(oid)
				AND obj_description(oid, 'pg_type') IS NOT NULL
		) AS ours (kind, name)
		GROUP BY kind ORDER BY array_position('{VIEW,FUNCTION,TABLE,ROUTINE,TYPE}', kind)
	) LOOP
		EXECUTE command;
	END LOOP;
END $$;
