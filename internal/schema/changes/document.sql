-- The policy as one document. rate_limit_policy returns the document, and rate_limit_apply changes the tables
-- to match a document. Both functions read the columns from the catalog, so a new column of a table needs no
-- change here.

-- The columns of the policy that a document has. Values that the server fills are left out.
--   place: The order of the tables. Rows refer only to rows of earlier tables.
--   section: The name of the list of rows in a document.
--   relation: The table.
--   position: The place of the column in the table.
--   name: The column.
--   type: The type of the column.
--   default_value: The default of the column, as SQL. NULL: none.
--   key: The place among the columns that name a row. NULL: the column is not one of them.
--   needed: Whether each row of a document must have the column.
--   is_reference: Whether the column is the id of an API key. A document has the digest of the key in its
--     place.
--   description: The meaning of the column.
--
-- A document has a section for each table, except that the limits of a rule are a list in the rule. The view
-- leaves out columns that the server numbers, or fills with the time or the role of a change, and recognizes
-- these columns by their defaults. A reference to an API key is the digest of the key, because the id of the
-- key differs between databases.
CREATE OR REPLACE VIEW rate_limit_policy_columns WITH (security_invoker) AS
	SELECT s.place, s.section, s.relation, a.attnum AS position, a.attname::text AS name,
		format_type(a.atttypid, a.atttypmod) AS type, d.value AS default_value, array_position(s.keys,
			a.attname::text) AS key,
		a.attnotnull AND d.value IS NULL OR a.attname = 'events' AS needed,
		EXISTS (SELECT FROM pg_constraint c WHERE c.conrelid = a.attrelid AND c.contype = 'f'
			AND c.conkey = ARRAY[a.attnum]
			AND c.confrelid = 'rate_limit_api_keys'::regclass) AS is_reference,
		col_description(a.attrelid, a.attnum) AS description
	FROM (VALUES (1, 'tiers', 'rate_limit_tiers'::regclass, '{tier}'::text[]),
		(2, 'users', 'rate_limit_users', '{user_id}'), (3, 'keys', 'rate_limit_api_keys',
			'{digest}'),
		(4, 'rules', 'rate_limit_rules', '{name}'), (5, 'limits', 'rate_limit_rule_limits',
			'{rule,name}'),
		(6, 'overrides', 'rate_limit_overrides', '{rule,limit_name,tier,user_id,key_id,valid}'),
		(7, 'prices', 'rate_limit_prices', '{model,valid}')
	) AS s(place, section, relation, keys)
	JOIN pg_attribute a ON a.attrelid = s.relation AND a.attnum > 0 AND NOT a.attisdropped
	LEFT JOIN LATERAL (SELECT pg_get_expr(v.adbin, v.adrelid) FROM pg_attrdef v WHERE (v.adrelid,
		v.adnum) = (a.attrelid, a.attnum)) AS d(value) ON true
	WHERE (s.section, a.attname) <> ('limits', 'counted_as')
		AND a.attidentity = '' AND a.attgenerated = '' AND a.attname NOT IN ('parent_level', 'level')
		AND (d.value IS NULL OR d.value NOT IN ('now()',
		'SESSION_USER'));

-- The rows of a section of the policy, or of list as the tables would have them: the name for messages, the
-- fields that identify the row (key), its place in the table (at; NULL in a list), and the fields that do not
-- have their defaults.
--
-- The values have the form in which the server writes their types, and fields with their defaults are left
-- out, so that equal rows are equal documents. A text in place of a digest may be an API key, so names and
-- errors do not contain such a text.
CREATE OR REPLACE FUNCTION rate_limit_policy_rows(section text, list jsonb DEFAULT NULL)
RETURNS TABLE (name text, key jsonb, at tid, document jsonb) LANGUAGE plpgsql STABLE
SET timezone = 'UTC' SET datestyle = 'ISO' SET bytea_output = 'hex' AS $$
DECLARE
	s record;
BEGIN
	SELECT c.relation, string_agg(format('%L, %s', c.name, CASE
			WHEN c.is_reference AND list IS NOT NULL
				THEN format('CASE WHEN o ->> %1$L ~* ''^\\x[0-9a-f]{64}$'' THEN lower(o ->> %1$L)
				WHEN o ->> %1$L IS NOT NULL THEN ''\x'' END', c.name)
			WHEN c.is_reference THEN format('(SELECT k.digest FROM rate_limit_api_keys k WHERE k.id = t.%I)',
				c.name)
			WHEN c.name = 'counted_as' AND list IS NOT NULL THEN format('nullif(coalesce(t.counted_as, '
				'(SELECT r.counted_as FROM %1$s r WHERE r.%2$I = t.%2$I)), t.%2$I)', c.relation,
				CASE c.section WHEN 'users' THEN 'user_id' ELSE 'name' END)
			WHEN c.type = 'interval' THEN format('rate_limit_span(t.%I)', c.name)
			WHEN c.name = 'events' THEN 'coalesce(to_jsonb(t.events), ''"unlimited"'')'
			WHEN c.default_value IS NULL THEN format('t.%I', c.name)
			ELSE format('nullif(t.%I, %s)', c.name, c.default_value) END), ', ') AS fields,
		string_agg(format(CASE c.key WHEN 1 THEN '%s' WHEN 2 THEN '''/'' || (%s)'
			ELSE ''' %2$s '' || (%1$s)' END, format(CASE WHEN c.is_reference OR c.type = 'bytea'
				THEN 'regexp_replace(d.document ->> %L, ''^(\\x[0-9a-f]{12})[0-9a-f]{52}$|^.*$'', ''\1...'')'
				ELSE 'd.document ->> %L' END, c.name), c.name), ', ' ORDER BY c.key)
			FILTER (WHERE c.key > 0) AS shown,
		string_agg(format('d.document -> %L', c.name), ', ' ORDER BY c.key) FILTER (WHERE c.key > 0) AS keys,
		array_agg(c.name) FILTER (WHERE c.is_reference) AS refs
	INTO s FROM rate_limit_policy_columns c
		WHERE c.section = rate_limit_policy_rows.section GROUP BY c.relation;
	RETURN QUERY EXECUTE format('SELECT concat(%s), jsonb_build_array(%s), d.at, d.document
		FROM (SELECT jsonb_strip_nulls(jsonb_build_object(%s)) AS document, %s OFFSET 0) AS d',
		s.shown, s.keys, s.fields, CASE WHEN list IS NULL THEN format('t.ctid AS at FROM %s t', s.relation)
			ELSE format('NULL::tid AS at FROM jsonb_array_elements($1) AS o
			CROSS JOIN LATERAL jsonb_populate_record(NULL::%s, rate_limit_policy_values(o, $2)) t',
				s.relation) END)
		USING list, s.refs;
END $$;

-- The values of a row of a document, without its references to API keys, without links of time zones, and
-- with the name of a model as prices have it.
CREATE OR REPLACE FUNCTION rate_limit_policy_values(fields jsonb, refs text[]) RETURNS jsonb
	LANGUAGE sql IMMUTABLE
RETURN CASE WHEN fields ->> 'events' = 'unlimited' THEN fields - 'events' ELSE fields END
	- coalesce(refs, '{}') || CASE WHEN fields ->> 'time_zone' <> 'UTC' THEN jsonb_build_object('time_zone',
		coalesce(rate_limit_known_zone(fields ->> 'time_zone'), fields ->> 'time_zone')) ELSE '{}' END
	|| CASE WHEN fields ? 'model' THEN jsonb_build_object('model', rate_limit_model(fields ->> 'model'))
		ELSE '{}' END;

-- The limits in money, as RULE/LIMIT, with those that the lists of a document have.
CREATE OR REPLACE FUNCTION rate_limit_money_limits(lists jsonb DEFAULT '{}') RETURNS text[]
	LANGUAGE sql STABLE AS $$
	SELECT coalesce(array_agg(concat(l.rule, '/', l.name)), '{}') FROM (
		SELECT o.* FROM jsonb_to_recordset(lists -> 'limits') AS o(rule text, name text, unit text)
		UNION ALL SELECT t.rule, t.name, t.unit FROM rate_limit_rule_limits t
			WHERE NOT EXISTS (SELECT FROM jsonb_to_recordset(lists -> 'limits') AS o(rule text, name text)
				WHERE (o.rule, o.name) = (t.rule, t.name))) AS l WHERE l.unit = 'money'
$$;

-- The policy as a document: tiers, rules with their limits, overrides for tiers, and prices. users adds the
-- users, the digests of their API keys, and their overrides. A field that has its default is left out.
CREATE OR REPLACE FUNCTION rate_limit_policy(users boolean DEFAULT false) RETURNS jsonb
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	money CONSTANT text[] := rate_limit_money_limits();
	limits CONSTANT jsonb := (SELECT jsonb_object_agg(l.rule, jsonb_build_object('limits', l.list)) FROM (
		SELECT r.document ->> 'rule' AS rule, jsonb_agg(rate_limit_policy_amounts(r.document, money) - 'rule'
			ORDER BY r.key) AS list
		FROM rate_limit_policy_rows('limits') r GROUP BY 1) AS l);
BEGIN
	RETURN (SELECT jsonb_object_agg(s.section, coalesce((
			SELECT jsonb_agg(rate_limit_policy_amounts(r.document, money) || coalesce(CASE s.section
				WHEN 'rules' THEN limits -> r.name END, '{}') ORDER BY r.key)
			FROM rate_limit_policy_rows(s.section) r WHERE users OR s.section <> 'overrides'
				OR r.document ? 'tier'), '[]'))
		FROM (SELECT DISTINCT section FROM rate_limit_policy_columns) AS s
		WHERE s.section <> 'limits' AND (users OR s.section NOT IN ('users', 'keys')));
END $$;

-- The rows of rate_limit_policy_rows of a document, by section. It fails for unknown or missing fields,
-- values of a wrong type, and rows given twice.
--
-- rate_limit_policy_lists checks a document before the tables are locked. An error names the row, the field,
-- its value, and what the value must be, but does not repeat a value that may be an API key.
CREATE OR REPLACE FUNCTION rate_limit_policy_lists(policy jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
	sections CONSTANT text[] := '{tiers,users,keys,rules,overrides,prices}';
	money text[];
	lists jsonb := policy;
	result jsonb := '{}';
	rows jsonb;
	part record;
	item record;
	fault text;
BEGIN
	SELECT concat(f.key, CASE WHEN f.key = ANY (sections) THEN ': must be a list of rows, each with fields'
			ELSE ': unknown: must be one of ' || array_to_string(sections, ', ') END) INTO fault
		FROM jsonb_each(CASE jsonb_typeof(policy) WHEN 'object' THEN policy ELSE '{"policy": 1}' END) AS f
		WHERE f.key <> ALL (sections) OR jsonb_typeof(f.value) <> 'array'
			OR f.value @? '$[*] ? (@.type() != "object")' OR f.key = 'rules' AND f.value @?
				'strict $[*].limits ? (@.type() != "array" || @[*].type() != "object")'
		ORDER BY f.key = ANY (sections), f.key LIMIT 1;
	PERFORM rate_limit_refuse(fault, 'invalid_parameter_value');
	IF policy ? 'rules' THEN
		SELECT policy || jsonb_build_object('rules', coalesce(jsonb_agg(r - 'limits'), '[]'), 'limits',
			(SELECT coalesce(jsonb_agg(l || jsonb_build_object('rule', r -> 'name')), '[]')
				FROM jsonb_array_elements(policy -> 'rules') AS r, jsonb_array_elements(r -> 'limits') AS l))
			INTO lists FROM jsonb_array_elements(policy -> 'rules') AS r;
	END IF;
	money := rate_limit_money_limits(lists);
	PERFORM rate_limit_refuse(format('%s "%s": events: %s: must be 0 to 9007199254.740992 with at most 6 '
			'decimals', left(s, -1), n.name, o -> 'events'), 'invalid_parameter_value')
		FROM unnest('{limits,overrides}'::text[]) AS s, jsonb_array_elements(lists -> s) AS o,
			concat(o ->> 'rule', '/', coalesce(o ->> 'limit_name', o ->> 'name')) AS n(name)
		WHERE n.name = ANY (money) AND o ->> 'events' <> 'unlimited'
			AND NOT rate_limit_is_money(o ->> 'events');
	SELECT lists || coalesce(jsonb_object_agg(s, (SELECT coalesce(jsonb_agg(rate_limit_policy_amounts(o,
			money, true)), '[]') FROM jsonb_array_elements(lists -> s) AS o)), '{}') INTO lists
		FROM unnest('{limits,overrides}'::text[]) AS s WHERE lists ? s;
	FOR part IN SELECT section, left(section, -1) AS kind, relation, jsonb_object_agg(name, type) AS types,
			array_agg(name) FILTER (WHERE needed) AS needed,
			array_agg(name ORDER BY key) FILTER (WHERE key <= 2) AS keys,
			string_agg(name, ', ' ORDER BY position) || CASE section WHEN 'rules' THEN ', limits'
				ELSE '' END AS known
		FROM rate_limit_policy_columns WHERE lists ? section
		GROUP BY place, section, relation ORDER BY place
	LOOP
		EXIT WHEN fault IS NOT NULL;
		SELECT d.o, f.key, f.value, CASE WHEN part.types -> f.key IS NULL
			THEN format('unknown: must be one of %s', part.known)
				WHEN f.value IS NULL THEN 'missing: must be given' WHEN part.types ->> f.key LIKE '%[]'
					THEN 'must be a list, as in [a, b]'
				ELSE 'must be one value' END AS wrong
			INTO item FROM jsonb_array_elements(lists -> part.section) WITH ORDINALITY AS d(o, place) CROSS
				JOIN LATERAL (
				SELECT e.key, e.value FROM jsonb_each(d.o) e WHERE part.types -> e.key IS NULL
					OR jsonb_typeof(e.value) <> 'null'
						AND (part.types ->> e.key LIKE '%[]') <> (jsonb_typeof(e.value) = 'array')
						OR jsonb_typeof(e.value) = 'object'
				UNION ALL SELECT n, NULL FROM unnest(part.needed) AS n WHERE d.o ->> n IS NULL) AS f(key,
					value)
			ORDER BY d.place LIMIT 1;
		IF NOT FOUND THEN
			BEGIN
				SELECT coalesce(jsonb_agg(to_jsonb(r)), '[]') INTO rows
					FROM rate_limit_policy_rows(part.section, lists -> part.section) r;
				result := result || jsonb_build_object(part.section, rows);
				SELECT format('%s "%s": must be given once', part.kind, min(r.name)) INTO fault
					FROM jsonb_to_recordset(rows) AS r(name text, key jsonb)
					GROUP BY r.key HAVING count(*) > 1 LIMIT 1;
				CONTINUE;
			EXCEPTION WHEN data_exception THEN
				-- The error of the server does not name the field, so convert the fields one by one.
				FOR item IN SELECT d.o, f.key, f.value, 'must be of the type ' || (part.types ->> f.key)
						AS wrong
					FROM jsonb_array_elements(lists -> part.section) AS d(o), jsonb_each(d.o) f
					WHERE f.value <> '"unlimited"' OR f.key <> 'events'
				LOOP
					BEGIN
						EXECUTE format('SELECT FROM jsonb_populate_record(NULL::%s,
							jsonb_build_object($1, $2)) t WHERE t.%I IS NULL', part.relation, item.key)
							USING item.key, item.value;
					EXCEPTION WHEN data_exception THEN
						EXIT;
					END;
				END LOOP;
			END;
		END IF;
		fault := format('%s "%s": %s: %s%s', part.kind, (SELECT string_agg(CASE part.types ->> k WHEN 'bytea'
			THEN coalesce(substring(item.o ->> k FROM '^\\x[0-9a-f]{12}'), '') || '...'
				ELSE item.o ->> k END, '/') FROM unnest(part.keys) AS k), item.key,
			CASE WHEN item.wrong LIKE 'must%' AND item.key NOT IN ('digest', 'hint', 'key_id', 'replaced_by')
				THEN concat(item.value, ': ') END, item.wrong);
	END LOOP;
	PERFORM rate_limit_refuse(fault, 'invalid_parameter_value');
	RETURN result;
END $$;

-- The error of a constraint for display: the field, its value, and the permitted values; or the message, if
-- the name of the constraint does not describe them.
--
-- The name of a constraint begins with a column and says what the value must be, or says what the row must
-- be.
CREATE OR REPLACE FUNCTION rate_limit_fault(fault text, message text, detail text, fields jsonb) RETURNS text
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	part CONSTANT text[] := regexp_match(fault, '^(.*?)_((?:must|needs)_.*)$');
	taken CONSTANT text[] := regexp_match(detail, '^Key \(family, priority\)=\((.*), (.*?)\) already exists');
BEGIN
	IF fault LIKE 'exactly\_one\_of\_per%' AND fields ->> 'algorithm' = 'in_flight' THEN
		RETURN 'algorithm: "in_flight": must be an algorithm with a window; in_flight limits concurrent '
			'requests';
	ELSIF fault LIKE 'unit\_other%' THEN
		RETURN format('algorithm: %s: must be fixed_window or sliding_window with a unit of tokens or money: '
			'a response may cost more than is left, and other algorithms cannot count that',
			fields -> 'algorithm');
	ELSIF taken IS NOT NULL THEN
		RETURN format('priority: %s: must differ from the priority of the rule %s, which is in the same '
			'family',
			taken[2], (SELECT to_json(r.name) FROM rate_limit_rules r WHERE r.family = taken[1]
				AND r.priority::text = taken[2]));
	ELSIF part IS NULL THEN
		RETURN message;
	ELSIF fields ->> part[1] IS NULL OR part[1] IN ('digest', 'hint') THEN
		RETURN concat(
			CASE WHEN NOT fields ? 'limit_name' THEN substring(message FROM '^the override \d+') || ': ' END,
			(SELECT string_agg(format('%s: %s', f.key, f.value), ', ' ORDER BY f.key) || ': '
			FROM jsonb_each(nullif(fields, 'null')) AS f
			WHERE f.key NOT IN ('digest', 'hint', 'key_id') AND f.key IN (SELECT a.attname
				FROM pg_constraint c
				JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)
				WHERE c.contype = 'c' AND c.conname = fault)),
			replace(fault, '_', ' '), CASE WHEN detail LIKE 'Key %' AND detail NOT LIKE '%digest%'
			THEN ': ' || detail END);
	END IF;
	RETURN concat(part[1], ': ', fields -> part[1], ': ',
		replace(split_part(part[2], 'rate_limit', 1), '_', ' '), substring(part[2] FROM 'rate_limit.*'),
		CASE WHEN part[2] LIKE '%rate_limit_tiers' THEN
			(SELECT ', which has ' || string_agg(t.tier, ', ' ORDER BY t.rank, t.tier)
				FROM rate_limit_tiers t)
			WHEN part[1] IN ('algorithm', 'unit') THEN
			(SELECT ': ' || string_agg(name[1], ', ') FROM pg_constraint,
				regexp_matches(pg_get_constraintdef(oid), '''([a-z_]+)''', 'g') AS name
				WHERE conname = fault AND conrelid = 'rate_limit_rule_limits'::regclass) END);
END $$;

-- Inserts, updates or deletes rows of a section for rate_limit_apply, or clears the amounts of overrides and
-- the parents of users. The error is about the row that the server refuses.
--
-- One statement changes all rows of a list. An element of the list has the key and the name of a row, its
-- document (NULL: a row to delete), and have, its document before (NULL: a new row). Each statement finds the
-- rows by their keys, because earlier ones have changed their places. API keys refer to each other, and so do
-- users, so INSERT leaves these references to an UPDATE, which changes all rows that still differ.
CREATE OR REPLACE FUNCTION rate_limit_policy_write(section text, how text, list jsonb) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	chosen CONSTANT jsonb := jsonb_path_query_array(list, CASE how
		WHEN 'insert' THEN '$[*] ? (@.have == null)'
		WHEN 'delete' THEN '$[*] ? (@.document == null)' ELSE '$[*] ? (@.document != null)' END::jsonpath);
	s record;
BEGIN
	IF coalesce(jsonb_array_length(chosen), 0) = 0 THEN
		RETURN;
	END IF;
	SELECT c.relation, string_agg(quote_ident(c.name), ', ' ORDER BY c.position) AS names,
		string_agg(format(CASE WHEN c.is_reference THEN 'CASE WHEN d.document ? %1$L
				THEN coalesce((SELECT k.id FROM rate_limit_api_keys k
					WHERE k.digest = (d.document ->> %1$L)::bytea), 0) END'
			WHEN c.default_value IS NULL THEN 't.%I' ELSE 'coalesce(t.%I, %s)' END, c.name, c.default_value),
			', ' ORDER BY c.position) AS row
		INTO s FROM rate_limit_policy_columns c WHERE c.section = rate_limit_policy_write.section
			AND CASE how WHEN 'insert' THEN NOT (c.is_reference AND c.section = 'keys' OR c.name = 'parent')
				ELSE c.key IS NULL END GROUP BY c.relation;
	PERFORM rate_limit_write(format(CASE how WHEN 'insert' THEN 'INSERT INTO %s (%s) SELECT %s FROM %s, %s'
		WHEN 'update' THEN 'UPDATE %s x SET (%s) = ROW(%s) FROM %s, %s, %s AND h.document <> d.document'
		WHEN 'clear' THEN 'UPDATE %s x SET ' || CASE section WHEN 'users' THEN 'parent = NULL'
			ELSE 'events = NULL, burst = NULL' END || ' FROM %4$s, %6$s'
		ELSE 'DELETE FROM %s x USING %4$s, %6$s' END, s.relation, s.names, s.row,
		'jsonb_to_recordset($1) AS d(key jsonb, document jsonb)',
		format('jsonb_populate_record(NULL::%s, rate_limit_policy_values(d.document, %L)) t', s.relation,
			(SELECT array_agg(c.name) FROM rate_limit_policy_columns c
			WHERE c.section = rate_limit_policy_write.section AND c.is_reference)),
		format('rate_limit_policy_rows(%L) AS h WHERE x.ctid = h.at AND h.key = d.key', section)), chosen,
		section);
END $$;

-- Changes the policy to match a document of rate_limit_policy, and returns the differences: a new or deleted
-- row, or a changed field of an existing row. A field that the document lacks gets its default, except
-- counted_as of a rule. Rows that the document lacks stay; prune deletes such rows of the sections that the
-- document has. dry_run checks everything and changes nothing. force permits prices that differ by more than
-- ten times from those in force.
--
-- Tables are locked in the same order as by other commands, so that no deadlock is possible. Overrides,
-- limits and rules are deleted first, because a new one may have the name of an old one, or count by it. An
-- override must suit its limit after each statement, so overrides that change have no amount while limits
-- change. A chain of users must be short, so users that change have no parent before. Deferred constraints
-- are checked before the function returns, so that their errors come from the function and not from COMMIT.
CREATE OR REPLACE FUNCTION rate_limit_apply(policy jsonb, prune boolean DEFAULT false,
	dry_run boolean DEFAULT false, force boolean DEFAULT false)
RETURNS TABLE (section text, name text, what text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
	lists CONSTANT jsonb := rate_limit_policy_lists(policy);
	money CONSTANT text[] := rate_limit_money_limits(); -- before
	money_now CONSTANT text[] := rate_limit_money_limits(jsonb_build_object('limits',
		jsonb_path_query_array(lists, '$.limits[*].document')));
	plan jsonb := '{}'; -- Maps a section to its rows that differ, for rate_limit_policy_write.
	part record;
	found jsonb;
	defaults jsonb;
	unknown text[];
	fault text;
	detail text;
BEGIN
	LOCK TABLE rate_limit_tiers, rate_limit_users, rate_limit_api_keys, rate_limit_rules,
		rate_limit_rule_limits, rate_limit_overrides, rate_limit_prices
		IN SHARE ROW EXCLUSIVE MODE;
	FOR part IN SELECT c.section, string_agg(format('%L, %s', c.name, coalesce(c.default_value, 'NULL')),
			', ') AS defaults FROM rate_limit_policy_columns c WHERE lists ? c.section
		GROUP BY c.place, c.section ORDER BY c.place LOOP
		EXECUTE format('SELECT jsonb_build_object(%s)', part.defaults) INTO defaults;
		SELECT jsonb_agg(jsonb_build_object('key', coalesce(w.key, h.key), 'have', h.document,
				'document', w.document, 'name', coalesce(w.name, h.name)) ORDER BY coalesce(w.key, h.key))
			INTO found
			FROM rate_limit_policy_rows(part.section) h FULL JOIN jsonb_to_recordset(lists -> part.section)
				AS w(name text, key jsonb, document jsonb) ON w.key = h.key
			WHERE h.key IS NULL OR h.document <> w.document OR w.key IS NULL AND prune
				AND h.key <> '["anonymous"]' AND (part.section <> 'overrides'
				OR (lists ? 'users' OR NOT h.document ? 'user_id') AND (lists ? 'keys'
					OR NOT h.document ? 'key_id'));
		CONTINUE WHEN found IS NULL;
		plan := plan || jsonb_build_object(part.section, found);
		PERFORM rate_limit_refuse('price "' || d.name || '": '
				|| rate_limit_price_fault(h.rates -> p.model, rate_limit_rates(p)))
			FROM (SELECT rate_limit_rates_in_force() AS rates OFFSET 0) AS h,
				jsonb_to_recordset(found) AS d(document jsonb, name text),
				jsonb_populate_record(NULL::rate_limit_prices, d.document) AS p
			WHERE part.section = 'prices' AND force IS NOT TRUE;
		RETURN QUERY SELECT part.section, d.name, f.*
			FROM (SELECT d.name, rate_limit_policy_amounts(d.have, money) AS have,
				rate_limit_policy_amounts(d.document, money_now) AS document
				FROM jsonb_to_recordset(found) AS d(have jsonb, document jsonb, name text)) AS d
			CROSS JOIN LATERAL (SELECT 'created', NULL::jsonb, d.document WHERE d.have IS NULL
				UNION ALL SELECT 'deleted', d.have, NULL WHERE d.document IS NULL
				UNION ALL SELECT e.key, nullif((defaults || d.have) -> e.key, 'null'), nullif(e.value, 'null')
					FROM jsonb_each(defaults || d.document) AS e
					WHERE e.value <> (defaults || d.have) -> e.key) AS f;
	END LOOP;
	IF plan = '{}' THEN
		RETURN;
	END IF;
	BEGIN
		unknown := ARRAY(SELECT concat(r.name, '/', t) FROM rate_limit_rules r, unnest(r.tiers) AS t
			WHERE t NOT IN (SELECT tier FROM rate_limit_tiers));
		SET CONSTRAINTS ALL DEFERRED;
		PERFORM rate_limit_policy_write('overrides', 'delete', plan -> 'overrides');
		PERFORM rate_limit_policy_write('limits', 'delete', plan -> 'limits');
		PERFORM rate_limit_policy_write('rules', 'delete', plan -> 'rules');
		PERFORM rate_limit_policy_write('overrides', 'clear', plan -> 'overrides') WHERE plan ? 'limits';
		PERFORM rate_limit_policy_write('users', 'clear', jsonb_path_query_array(plan -> 'users',
			'$[*] ? (@.have.parent != null)'));
		-- A new user can count by the name of one that is deleted.
		PERFORM rate_limit_policy_write('users', 'delete', plan -> 'users');
		FOR part IN SELECT DISTINCT c.place, c.section FROM rate_limit_policy_columns c WHERE plan ? c.section
			ORDER BY 1 LOOP
			PERFORM rate_limit_policy_write(part.section, 'insert', plan -> part.section);
			PERFORM rate_limit_policy_write(part.section, 'update', plan -> part.section);
		END LOOP;
		PERFORM rate_limit_policy_write(s, 'delete', plan -> s)
			FROM unnest('{keys,tiers,prices}'::text[]) AS s;
		-- A deleted row takes rows that refer to it, or their references, with it.
		PERFORM rate_limit_refuse(format('%s "%s": refers to a row that prune deletes, or did: keep that '
			'row, or apply the document without prune first', rtrim(s, 's'), w.name), 'foreign_key_violation')
			FROM unnest('{keys,overrides}'::text[]) AS s
			CROSS JOIN LATERAL jsonb_to_recordset(lists -> s) AS w(name text, key jsonb, document jsonb)
			WHERE prune AND NOT EXISTS (SELECT FROM rate_limit_policy_rows(s) AS h
				WHERE h.key = w.key AND h.document = w.document);
		PERFORM rate_limit_refuse(f.fault, 'foreign_key_violation') FROM (
			SELECT format('rule "%s": %s', f.name, f.fault) AS fault FROM (
			SELECT r.name, format('tiers: "%s": must be in the section tiers, or in rate_limit_tiers', t)
			FROM rate_limit_rules r, unnest(r.tiers) AS t
			WHERE t NOT IN (SELECT tier FROM rate_limit_tiers) AND concat(r.name, '/', t) <> ALL (unknown)
			UNION ALL SELECT r.name, format('priority: %s: must differ from the priority of the rule '
				'"%s", which is in the same family', r.priority, o.name)
			FROM rate_limit_rules r JOIN rate_limit_rules o ON (o.family, o.priority) = (r.family, r.priority)
				AND o.name > r.name
			UNION ALL SELECT r.name, format('counted_as: "%s": must be a name by which no other rule '
				'counts: the rule "%s" counts by it', r.counts, o.name)
			FROM (SELECT x.name, coalesce(x.counted_as, x.name) AS counts FROM rate_limit_rules x) AS r
				JOIN rate_limit_rules o ON coalesce(o.counted_as, o.name) = r.counts AND o.name > r.name)
			AS f(name, fault) ORDER BY f.fault DESC, f.name LIMIT 1) AS f;
		SET CONSTRAINTS ALL IMMEDIATE;
		SET CONSTRAINTS ALL DEFERRED;
		IF dry_run THEN
			RAISE SQLSTATE 'RL000';
		END IF;
	EXCEPTION WHEN SQLSTATE 'RL000' THEN
		NULL; -- The exception undoes the changes of the block. The rows of RETURN QUERY stay.
	WHEN integrity_constraint_violation THEN
		GET STACKED DIAGNOSTICS fault = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
		RAISE check_violation USING MESSAGE = concat('rule "' || substring(detail
			FROM '^The rule is ''(.*)''\.$') || '": ', fault);
	END;
END $$;
