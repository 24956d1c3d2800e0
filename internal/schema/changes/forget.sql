-- Deletes all stored data about a person. The function has the rights of the calling role, so only the owner
-- of the tables can use it. It skips parts that the database lacks, such as a policy or a history.

-- TABLE rate_limit_forgotten: The names that were forgotten within a day, as digests. Upkeep forgets them
-- again where a request has brought them back that ran then.
--   digest: The SHA-256 of user:, key_id: or text: and the name.
--   at: When it was last forgotten.

-- When a request in the ledger began, by the clock of its proxy. NULL: another number.
CREATE OR REPLACE FUNCTION rate_limit_began(id uuid) RETURNS timestamptz
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN substr($1::text, 15, 1) = '7'
	THEN to_timestamp(('x' || left(replace($1::text, '-', ''), 12))::bit(48)::bigint / 1000.0) END;

-- Runs the command with which rate_limit_forget_person changes the ledger, and returns how many rows changed.
--
-- A day that is summed refuses changes by others, see totals.sql. Its sums are made again by upkeep. See
-- rate_limit_ledger_drop for the settings.
CREATE OR REPLACE FUNCTION rate_limit_forget_in_ledger(command text, counted text[], keys bigint[],
	texts text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	rows bigint;
	days date[];
BEGIN
	SET LOCAL citus.propagate_set_commands = 'local';
	SET LOCAL pg_ratelimit.forgets = 'on';
	PERFORM pg_advisory_xact_lock(1885827697); -- see rate_limit_correct
	EXECUTE format('WITH changed AS (%s RETURNING day) SELECT count(*), array_agg(DISTINCT day) FROM changed',
		command) INTO rows, days USING counted, keys, texts;
	SET LOCAL pg_ratelimit.forgets = '';
	UPDATE rate_limit_ledger_days d SET summed = false WHERE d.day = ANY (days);
	DELETE FROM rate_limit_totals t WHERE t.user_id = ANY (counted) OR t.ancestors && counted;
	RETURN rows;
END $$;

-- Deletes all rows about a person, who must not be the parent of users, from the counters, the history, the
-- overrides and the bans. One argument names the person: user_id (with its API keys), key_id (an API key),
-- key (an API key, or the key of a counter) or address. account also deletes the user and the API keys.
-- Returns for each table the number of rows that were deleted, or that a dry run would delete, and of kept
-- rows: changes, which proxies need, counters of running requests, and rows of the ledger, which lose user,
-- API key and key. If requests of the person hold units, a last row has a number that is not above theirs.
-- until: forgets only what requests until then have made, and no overrides and bans.
CREATE OR REPLACE FUNCTION rate_limit_forget_person(user_id text DEFAULT NULL, key_id bigint DEFAULT NULL,
	key text DEFAULT NULL, address inet DEFAULT NULL,
	account boolean DEFAULT false, dry_run boolean DEFAULT false, until timestamptz DEFAULT NULL)
RETURNS TABLE (name text, deleted bigint, kept bigint) LANGUAGE plpgsql AS $$
DECLARE
	-- the addresses of one client
	network CONSTANT cidr := network(set_masklen($4, CASE family($4) WHEN 6 THEN 64 ELSE 32 END));
	-- the client, as keys of counters contain it
	client CONSTANT text := CASE family($4) WHEN 6 THEN network::text ELSE host($4) END;
	users CONSTANT text[] := array_remove(ARRAY[$1], NULL);
	counted CONSTANT text[] := array_remove(ARRAY[CASE WHEN until IS NULL THEN rate_limit_counted_user($1)
		ELSE $1 END], NULL);
	keys bigint[] := array_remove(ARRAY[$2], NULL);
	-- keys of counters, and parts of such keys
	texts text[] := array_remove(ARRAY[$1, rate_limit_counter_key($1), rate_limit_counter_key(counted[1]), $3,
		host($4), client], NULL);
	ids text[]; -- of API keys, as keys of counters contain them
	digests text[];
	refs text[]; -- values of rate_limit_changes.ref
	counted_or_deleted CONSTANT text := CASE WHEN dry_run THEN 'SELECT count(*) FROM %s WHERE %s'
		ELSE 'WITH d AS (DELETE FROM %s WHERE %s RETURNING 1) SELECT count(*) FROM d' END;
	parts CONSTANT oid[] := ARRAY(SELECT c.oid FROM pg_class c JOIN pg_class a
			ON a.oid = to_regclass('rate_limit_audit') AND a.relnamespace = c.relnamespace
				AND a.relowner = c.relowner
		WHERE c.relkind = 'r' AND c.relname ~ '^rate_limit_audit_[0-9]{8}(_[0-9]+)?$');
	condition text;
	counts record;
	rules text := '(SELECT NULL::text AS counts, NULL::text[] AS count_by WHERE false)';
	prefixes text[];
	counters text[];
	holding bigint;
	running bigint := 0;
BEGIN
	IF num_nonnulls($1, $2, $3, $4) <> 1 THEN
		RAISE invalid_parameter_value
			USING MESSAGE = format('user_id, key_id, key, address: exactly one of them must be given, '
				'not %s', num_nonnulls($1, $2, $3, $4));
	END IF;
	IF until IS NULL AND to_regclass('rate_limit_users') IS NOT NULL THEN
		PERFORM rate_limit_refuse_parent($1);
	END IF;
	texts := ARRAY(SELECT s FROM unnest(texts) AS t, unnest(rate_limit_stored_keys(t)) AS s)
		|| array_remove(ARRAY['ip:' || client, '%preflight:' || client], NULL);
	IF to_regclass('rate_limit_api_keys') IS NOT NULL THEN
		rules := '(SELECT coalesce(to_jsonb(r) ->> ''counted_as'', name) AS counts, count_by '
			'FROM rate_limit_rules r)';
		SELECT keys || array_agg(k.id), array_agg(k.counted_as::text), array_agg(encode(k.digest, 'hex'))
			INTO keys, ids, digests
			FROM rate_limit_api_keys k
			WHERE k.user_id = $1 OR k.id = $2 OR k.digest = sha256(convert_to($3, 'UTF8'));
		refs := texts || array_remove(ARRAY['user/' || $1, 'network/' || network], NULL) || digests ||
			ARRAY(SELECT 'key/' || d FROM unnest(digests) AS d);
	END IF;
	-- The number of an alternative may stand before a text. Where a zone counts by a header, the key of a
	-- counter is the digest of the API key.
	texts := texts || ARRAY(SELECT 'sha256:' || d FROM unnest(digests) AS d);
	IF until IS NULL AND NOT dry_run THEN
		INSERT INTO rate_limit_forgotten SELECT DISTINCT sha256(convert_to(n, 'UTF8'))
			FROM (SELECT 'user:' || unnest(counted) UNION ALL SELECT 'key_id:' || unnest(keys)
				UNION ALL SELECT 'text:' || unnest(texts) WHERE $1 IS NULL) AS f(n)
			ON CONFLICT ON CONSTRAINT rate_limit_forgotten_pkey DO UPDATE SET at = now();
	END IF;
	texts := rate_limit_key_forms(texts);
	ids := rate_limit_key_forms(array_remove(keys::text[] || ids, NULL));
	kept := 0;

	-- Without an identity, rows of a table in a publication cannot be deleted.
	IF NOT dry_run AND EXISTS (SELECT FROM pg_publication p WHERE p.pubdelete) THEN
		FOR name IN SELECT c.oid::regclass FROM pg_class c WHERE c.oid = ANY (parts) AND c.relreplident = 'd'
		LOOP
			EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', name);
		END LOOP;
	END IF;

	FOR name, condition IN
		-- Detached partitions are listed, because a statement on the audit log does not reach them. A row
		-- with a user belongs to that user alone, whatever the key of its counter contains.
		SELECT a.name, '($5 IS NULL OR time <= $5) AND (user_id = ANY ($1) OR key_id = ANY ($2)
			OR address <<= $3 OR (user_id IS NULL OR cardinality($1) = 0) AND (key = ANY ($4)
				OR string_to_array(key, '' '') && $4 OR also && $4))'
		FROM (SELECT 'rate_limit_audit' AS name, 'rate_limit_audit'::text AS place UNION ALL
			SELECT format('%I.%I', c.relnamespace::regnamespace, c.relname), c.relname FROM pg_class c
				LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
			WHERE c.oid = ANY (parts) AND (i.inhrelid IS NULL OR i.inhdetachpending) ORDER BY place) AS a
		UNION ALL -- a table comes before the tables that it refers to
		SELECT t.name, t.condition
			FROM (VALUES ('rate_limit_metrics',
					'($5 IS NULL OR time <= $5) AND (user_id = ANY ($1) OR key_id = ANY ($2))', true),
				('rate_limit_overrides', 'user_id = ANY ($1) OR key_id = ANY ($2)', until IS NULL),
			('rate_limit_bans', 'user_id = ANY ($1) OR key_id = ANY ($2) OR network <<= $3', until IS NULL),
			('rate_limit_api_keys', 'id = ANY ($2)', account), ('rate_limit_users', 'user_id = ANY ($1)',
				account)) AS t(name, condition, wanted) WHERE t.wanted
	LOOP
		CONTINUE WHEN to_regclass(name) IS NULL;
		EXECUTE format(counted_or_deleted, name, condition) INTO deleted
			USING users, keys, network, texts, until;
		RETURN NEXT;
	END LOOP;

	IF to_regclass('rate_limit_changes') IS NOT NULL THEN
		SELECT 'rate_limit_changes', 0, count(*) INTO name, deleted, kept FROM rate_limit_changes c
			WHERE c.ref = ANY (refs);
		RETURN NEXT;
	END IF;

	FOR name IN SELECT t::regclass FROM rate_limit_ledgers() t LOOP
		-- As in the audit log, a row with a user belongs to that user alone. An address can be of many users.
		condition := format('WHERE (user_id = ANY ($1) OR key_id = ANY ($2)
			OR ancestors <> ''{}'' AND ancestors && $1
			OR (user_id IS NULL OR cardinality($1) = 0) AND EXISTS (
				SELECT FROM jsonb_path_query(charges, ''$[*]'') c
				WHERE string_to_array(c ->> ''key'', '' '') && $3))
			AND (%1$L IS NULL OR rate_limit_began(id) <= %1$L)', until);
		IF dry_run THEN
			EXECUTE format('SELECT count(*) FROM %s %s', name, condition) INTO deleted
				USING counted, keys, texts;
		ELSE
			deleted := rate_limit_forget_in_ledger(format('UPDATE %1$s SET
				user_id = CASE WHEN %3$s THEN NULL ELSE user_id END,
				key_id = CASE WHEN %3$s THEN NULL ELSE key_id END,
				ancestors = CASE WHEN $1 = ''{}'' THEN ancestors
					ELSE array_replace(ancestors, $1[1], '''') END,
				charges = (SELECT coalesce(jsonb_agg(CASE WHEN %3$s AND c ->> ''key'' <> ALL (
					rate_limit_key_forms(ARRAY(SELECT rate_limit_counter_key(a) FROM unnest(ancestors) AS a)))
					OR string_to_array(c ->> ''key'', '' '') && $3
					THEN c || ''{"key": null}'' ELSE c END), ''[]'')
					FROM jsonb_path_query(charges, ''$[*]'') c) %2$s',
				name, condition, '(user_id = ANY ($1) OR key_id = ANY ($2))'), counted, keys, texts);
		END IF;
		kept := deleted;
		deleted := 0;
		RETURN NEXT;
	END LOOP;

	-- Counters come last, and all counters of a table are found before the first one is locked, because
	-- proxies wait for locked counters until the transaction ends. A key can consist of several values with
	-- spaces between them. Where a rule counts by API key, only the id of an API key matches, because the
	-- name of a user may be the same number.
	condition := 'EXISTS (SELECT FROM unnest(string_to_array(c.key, '' '')) WITH ORDINALITY AS p(part, '
		'place) WHERE part = ANY (CASE WHEN ''key'' IN (r.count_by[place], split_part(r.count_by[place], '
			'''|'', substring(part FROM ''^([1-9])[|]'')::int)) THEN $1 ELSE $2 END))
		OR r.counts IS NULL AND c.key = ANY ($2)';
	FOR counts IN SELECT * FROM rate_limit_counter_tables() LOOP
		name := counts.counters;
		EXECUTE format(replace($sql$SELECT array_agg(h.prefix), array_agg(h.key), max(h.holders)
			FROM (SELECT c.prefix, c.key, {holders} AS holders FROM %1$s c LEFT JOIN %2$s r
				ON c.prefix LIKE 'rule/%%' AND split_part(c.prefix, '/', 2) = r.counts WHERE %3$s) h$sql$,
			'{processes}', '%4$s'), name, rules, condition, counts.processes)
			INTO prefixes, counters, holding USING ids, texts;
		running := greatest(running, holding);
		deleted := coalesce(cardinality(counters), 0);
		kept := 0;
		IF deleted > 0 AND NOT dry_run THEN
			kept := deleted;
			deleted := rate_limit_delete_counters(counts.counters, counts.processes, prefixes, counters);
			kept := kept - deleted;
		END IF;
		RETURN NEXT;
	END LOOP;

	-- after the counters: a notice would come back while its counter is there
	condition := format('FROM rate_limit_notices c LEFT JOIN %s r ON c.rule = r.counts WHERE %s', rules,
		condition);
	EXECUTE format(counted_or_deleted, 'rate_limit_notices', format('ctid = ANY (ARRAY(SELECT c.ctid %s))',
		condition)) INTO deleted USING ids, texts;
	SELECT 'rate_limit_notices', 0 INTO name, kept;
	RETURN NEXT;
	IF running > 0 THEN
		SELECT 'running requests, at least', 0, running INTO name, deleted, kept;
		RETURN NEXT;
	END IF;
END $$;

-- Forgets again the names that requests have brought back that ran when they were forgotten, within a day.
-- rate_limit_ledger_upkeep calls it.
--
-- A request that runs while its sender is forgotten brings the name back with its settlement. The number of
-- the request has the time of its start, by the clock of a proxy.
CREATE OR REPLACE FUNCTION rate_limit_forget_again() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	first timestamptz;
	source text;
	found record;
BEGIN
	DELETE FROM rate_limit_forgotten f WHERE f.at < now() - interval '1 day';
	SELECT min(f.at) INTO first FROM rate_limit_forgotten f;
	SELECT string_agg(format('SELECT * FROM %s WHERE day >= %L AND time >= %L', l,
		(first AT TIME ZONE 'UTC')::date - 8, first), ' UNION ALL ') INTO source FROM rate_limit_ledgers() l;
	IF first IS NULL THEN
		RETURN;
	END IF;
	FOR found IN EXECUTE format('SELECT DISTINCT n.kind, n.name, f.until FROM (%s) l, LATERAL (
			SELECT ''user'', l.user_id UNION ALL SELECT ''user'', unnest(l.ancestors)
			UNION ALL SELECT ''key_id'', l.key_id::text UNION ALL SELECT ''text'', regexp_replace(
				unnest(string_to_array(c ->> ''key'', '' '')), ''^[1-9][|]'', '''')
			FROM jsonb_path_query(l.charges, ''$[*]'') c) n(kind, name)
		JOIN (SELECT f.digest, f.at, f.at + interval ''1 min'' AS until FROM rate_limit_forgotten f) f
			ON f.digest = sha256(convert_to(n.kind || '':'' || n.name, ''UTF8''))
		WHERE l.time >= f.at AND rate_limit_began(l.id) <= f.until', source)
	LOOP
		PERFORM rate_limit_forget_person(CASE found.kind WHEN 'user' THEN found.name END,
			CASE found.kind WHEN 'key_id' THEN found.name::bigint END,
			CASE found.kind WHEN 'text' THEN found.name END, until => found.until);
	END LOOP;
EXCEPTION WHEN lock_not_available THEN
	NULL;
END $$;
