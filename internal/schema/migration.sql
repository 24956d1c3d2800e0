-- The migration is one command, and so one transaction in every client: the functions that constraints call,
-- the numbered files that the database has not run, and the files that are made again. It ends with
-- rate_limit_about, which says what the database has. The name of that function comes before the names of all
-- others, so that a restore creates it first and drops it last. The generator replaces the names in braces.
--
-- The migration runs as the owner of the tables, in their schema, so that all have one. It runs each command
-- by itself, so that an error names what the command makes.

DO $migration$
DECLARE
	facts CONSTANT jsonb := '{facts}';
	state record;
	owner oid;
	owners text;
	place regnamespace;
	command text;
	context text;
	detail text;
	hint text;
BEGIN
	SELECT s.* INTO state FROM ({state}) AS s;
	IF current_setting('server_version_num')::int < 150000 THEN
		RAISE feature_not_supported USING MESSAGE = format('pg-ratelimit needs PostgreSQL 15 or newer, and '
			'this server is %s', current_setting('server_version'));
	ELSIF state.fault IS NOT NULL THEN
		RAISE object_not_in_prerequisite_state USING MESSAGE = state.fault;
	ELSIF NOT (state.lacks AND state.revision = {revision}) AND (state.revision >= {revision}
		OR state.number > 0 AND current_setting('pg_ratelimit.creates', true) = 'on') THEN
		RETURN;
	END IF;
	SELECT min(c.relowner), string_agg(DISTINCT c.relowner::regrole::text, ', '), min(c.relnamespace)
		INTO owner, owners, place
		FROM jsonb_array_elements_text(facts -> 'tables') AS t JOIN pg_class c ON c.oid = to_regclass(t);
	IF owners LIKE '%,%' OR NOT pg_has_role(owner, 'MEMBER') THEN
		RAISE insufficient_privilege USING MESSAGE = format('the tables belong to %s, and this session has '
			'the role %I: all must belong to one role, which this session has or is a member of. To change '
			'that: %s', owners, current_user, (SELECT string_agg(format('ALTER TABLE %s OWNER TO %I',
				c.oid::regclass, current_user), '; ') FROM jsonb_array_elements_text(facts -> 'tables') AS t
				JOIN pg_class c ON c.oid = to_regclass(t) WHERE c.relowner <> current_user::regrole));
	ELSIF owner <> current_user::regrole OR place::text <> quote_ident(current_schema()) THEN
		PERFORM set_config('search_path', (SELECT string_agg(quote_ident(s), ', ')
			FROM unnest((SELECT n.nspname FROM pg_namespace n WHERE n.oid = place)
				|| current_schemas(false)) AS s), true);
		PERFORM set_config('role', owner::regrole::text, true);
	END IF;
	PERFORM set_config('pg_ratelimit.had', ARRAY(SELECT oid FROM pg_class WHERE relname LIKE 'rate\_limit\_%'
		UNION ALL SELECT oid FROM pg_proc WHERE proname LIKE 'rate\_limit\_%')::text, true);
	IF state.number = 0 THEN
		CREATE FUNCTION rate_limit_about() RETURNS jsonb LANGUAGE sql IMMUTABLE AS 'SELECT NULL::jsonb';
	END IF;
	FOREACH command IN ARRAY string_to_array(concat(
		$file${first}$file$, {numbered}, $file${repeatable}$file$), E'\n--;\n')
	LOOP
		BEGIN
			EXECUTE command;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT, detail = PG_EXCEPTION_DETAIL,
				hint = PG_EXCEPTION_HINT;
			RAISE EXCEPTION USING ERRCODE = SQLSTATE, DETAIL = detail,
				HINT = CASE WHEN SQLSTATE = '2BP01' THEN 'Drop what depends on it, and make it again after '
					'the migration. ' ELSE coalesce(nullif(hint, '') || ' ', '') END
					|| 'The migration has changed nothing.',
				MESSAGE = concat(replace(substring(context FROM '((?:FUNCTION|PROCEDURE|AGGREGATE|VIEW|TABLE|'
					'INDEX|TRIGGER|TYPE|SEQUENCE) (?:IF EXISTS )?rate_limit_\w+)'), 'IF EXISTS ', '') || ': ',
					SQLERRM);
		END;
	END LOOP;
	EXECUTE format($about$
CREATE OR REPLACE FUNCTION rate_limit_about() RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE
	AS 'SELECT ''%s''::jsonb'$about$, facts || jsonb_build_object('number', {number}, 'revision', {revision},
		'oldest', {oldest},
		'keys', (SELECT jsonb_agg(concat(c.relname, '.', k.conname) ORDER BY concat(c.relname, '.', k.conname)
				COLLATE "C")
			FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid WHERE facts -> 'tables' ? c.relname
				AND pg_table_is_visible(c.oid) AND k.contype IN ('p', 'u', 'x')),
		'triggers', (SELECT count(*) FROM pg_trigger g WHERE g.tgname LIKE 'rate\_limit\_%'
			AND g.tgname <> 'rate_limit_refuse_count' AND g.tgrelid
			IN (SELECT to_regclass(t) FROM jsonb_array_elements_text(facts -> 'tables') t))));
	COMMENT ON FUNCTION rate_limit_about IS 'What the database has: the number of the last file that it has '
		'run, the revision of its functions, the oldest program that may go on, the columns by which only '
		'newer programs match rules, its tables, their keys, and the number of their triggers.';
END $migration$;
