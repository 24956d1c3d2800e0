-- Removes what the proxies added to a database of the npm library pg-ratelimit: the columns of its two
-- tables, and all other tables, views and functions with their rows. Run it when no proxy uses them.
BEGIN;
SET LOCAL lock_timeout = '2s';
DO $$
DECLARE
	command text;
BEGIN
	FOREACH command IN ARRAY ARRAY(
		SELECT format('DROP %s %s', kind, string_agg(name, ', ')) FROM (
			SELECT CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, oid::regclass::text FROM pg_class
			WHERE relname LIKE 'rate\_limit\_%' AND relkind IN ('r', 'p', 'v') AND NOT relispartition
				AND pg_table_is_visible(oid) AND obj_description(oid, 'pg_class') IS NOT NULL
				AND relname NOT IN ('rate_limit_ephemeral', 'rate_limit_durable')
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
ALTER TABLE rate_limit_ephemeral
	DROP COLUMN IF EXISTS hits, DROP COLUMN IF EXISTS remainder, DROP COLUMN IF EXISTS ord,
	DROP COLUMN IF EXISTS granted, DROP COLUMN IF EXISTS slots, DROP COLUMN IF EXISTS held,
	RESET (fillfactor);
ALTER TABLE rate_limit_durable
	DROP COLUMN IF EXISTS hits, DROP COLUMN IF EXISTS remainder, DROP COLUMN IF EXISTS ord,
	DROP COLUMN IF EXISTS granted, DROP COLUMN IF EXISTS slots, DROP COLUMN IF EXISTS held,
	RESET (fillfactor);
COMMIT;
DELETE FROM rate_limit_ephemeral WHERE expires_at < now();
DELETE FROM rate_limit_durable WHERE expires_at < now();
