-- What a database has, as rate_limit_about says: the number of the last file that it has run, its revision,
-- and the oldest program that may use it, or 0. unnumbered: it has tables of a program before 0.1.0, which
-- have no numbers. in_part: it lacks a table or a key that rate_limit_about names, or a trigger, or one is
-- disabled. lacks: all is there but tables of counts, which hold no rows that must stay. fault says why a
-- program must not change the tables, or is NULL. The query needs no privilege on a table, and takes no lock.
-- The generator replaces the names in braces.
WITH a AS MATERIALIZED (SELECT {about} AS about, {whole} AS whole),
m AS MATERIALIZED (SELECT coalesce(array_agg(t), '{}') AS tables, coalesce(bool_or(t NOT IN
			('rate_limit_ephemeral', 'rate_limit_durable', 'rate_limit_processes')), false) AS others
	FROM a, jsonb_array_elements_text(a.about -> 'tables') t WHERE to_regclass(t) IS NULL),
s AS MATERIALIZED (SELECT a.about IS NOT NULL AND NOT (a.whole AND NOT m.others
		AND (SELECT count(*) FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
			WHERE a.about -> 'keys' ? concat(c.relname, '.', k.conname) AND pg_table_is_visible(c.oid))
			= (SELECT count(*) FROM jsonb_array_elements_text(a.about -> 'keys') AS k
				WHERE split_part(k, '.', 1) <> ALL (m.tables))) AS in_part,
	m.tables <> '{}' AND NOT m.others AS lacks,
	a.about IS NULL AND EXISTS (SELECT FROM pg_proc p WHERE p.proname = 'rate_limit_behind'
		AND pg_function_is_visible(p.oid)) AS unnumbered
	FROM a, m)
SELECT coalesce((a.about ->> 'number')::int, 0) AS number,
	coalesce((a.about ->> 'revision')::int, 0) AS revision,
	coalesce((a.about ->> 'oldest')::int, 0) AS oldest, s.in_part, s.lacks, s.unnumbered, CASE
		WHEN s.in_part THEN 'the tables are there in part, as during a restore and after one that has '
			'failed. If no restore is under way, repeat the restore, or drop all tables and functions of '
			'pg-ratelimit, and run schema.sql'
		WHEN s.unnumbered THEN 'the tables were made before 0.1.0: dump the rows that you need, and drop all '
			'tables and functions with names that begin with rate_limit_'
		WHEN a.about IS NULL THEN coalesce(
			(SELECT string_agg(format('the table %s.%I is of another program: rename it, or give '
				'pg-ratelimit a schema of its own, with CREATE SCHEMA limits, and search_path=limits in '
				'the DSN of all proxies and commands', c.relnamespace::regnamespace, c.relname), '; '
				ORDER BY c.relname)
			FROM jsonb_array_elements_text('{facts}'::jsonb -> 'tables') t
				JOIN pg_class c ON c.oid = to_regclass(t)
			WHERE t NOT IN ('rate_limit_ephemeral', 'rate_limit_durable')
				OR (SELECT count(*) FROM pg_attribute f WHERE f.attrelid = c.oid
					AND f.attname IN ('prefix', 'key', 'expires_at')) < 3),
			(SELECT string_agg(format('%s: the column %s has the type %s, must be %s: '
				'ALTER TABLE %1$s ALTER COLUMN %2$s TYPE %4$s', f.attrelid::regclass, f.attname,
				format_type(f.atttypid, f.atttypmod), w.type), '; ')
			FROM pg_attribute f JOIN (VALUES ('prefix', 'text'), ('key', 'text'), ('count', 'bigint'),
				('prev_count', 'bigint'), ('window_start', 'timestamptz'), ('tokens', 'float8'),
				('last_refill', 'timestamptz'), ('expires_at', 'timestamptz')
			) AS w(name, type) ON f.attname = w.name AND NOT f.attisdropped
			WHERE f.attrelid IN (to_regclass('rate_limit_ephemeral'), to_regclass('rate_limit_durable'))
				AND f.atttypid <> w.type::regtype)) END AS fault
FROM a, s
