-- Triggers that write rate_limit_changes: one line for each changed row, or a single line for a statement
-- that changes more than 1,000 rows or empties a table.
--
-- The trigger function has the rights of the owner of the tables. A role that may change the policy therefore
-- needs no right to write the log, and can neither forge nor omit a line. The arguments of a trigger are the
-- kind and the key columns.
--
-- After an update, old and new rows are matched by key and ref. If the ref of a row has changed, such as the
-- user of an override, the row has two lines, like a deletion and an insertion, so that proxies read both
-- refs. A row without a change has no line.

-- Returns the ref of a changed row. For a ban or override of a deleted key, it is key/ without the digest,
-- which the change of the key itself has.
CREATE OR REPLACE FUNCTION rate_limit_change_ref(kind text, r jsonb) RETURNS text LANGUAGE sql STABLE AS $$
	SELECT CASE kind
		WHEN 'key' THEN substr(r->>'digest', 3)
		WHEN 'limit' THEN concat(r->>'rule', '/', r->>'name')
		WHEN 'rule' THEN r->>'name'
		WHEN 'tier' THEN r->>'tier'
		WHEN 'user' THEN r->>'user_id'
		WHEN 'price' THEN r->>'model'
		ELSE coalesce('network/' || (r->>'network'), 'user/' || (r->>'user_id'), 'tier/' || (r->>'tier'),
			concat('key/', (SELECT encode(k.digest, 'hex') FROM rate_limit_api_keys k
				WHERE k.id = (r->>'key_id')::bigint))) END
$$;

-- Writes rate_limit_changes.
CREATE OR REPLACE FUNCTION rate_limit_log_changes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	kind CONSTANT text := TG_ARGV[0];
	-- The name of a person follows the role, so that it cannot pass for a role.
	actor CONSTANT text := coalesce(nullif(current_setting('role'), 'none'), session_user)
		|| coalesce(' (' || nullif(left(current_setting('rate_limit.person', true), 100), '') || ')', '');
	most CONSTANT int := 1000;
	changed int := 0;
BEGIN
	IF TG_OP <> 'TRUNCATE' THEN
		SELECT count(*) INTO changed FROM (SELECT FROM changed_rows LIMIT most + 1) AS counted;
	END IF;
	IF TG_OP = 'TRUNCATE' OR changed > most THEN
		INSERT INTO rate_limit_changes (kind, by) VALUES (kind, actor);
	ELSIF TG_OP <> 'UPDATE' THEN
		INSERT INTO rate_limit_changes (kind, ref, by, before, after)
			SELECT kind, rate_limit_change_ref(kind, c.r), actor, CASE TG_OP WHEN 'DELETE' THEN c.r END,
				CASE TG_OP WHEN 'INSERT' THEN c.r END
			FROM (SELECT to_jsonb(x) AS r FROM changed_rows AS x) AS c;
	ELSE
		INSERT INTO rate_limit_changes (kind, ref, by, before, after)
			WITH o AS MATERIALIZED (SELECT to_jsonb(x) AS r, rate_limit_change_ref(kind, to_jsonb(x)) AS ref
				FROM changed_rows AS x),
				n AS MATERIALIZED (SELECT to_jsonb(x) AS r, rate_limit_change_ref(kind, to_jsonb(x)) AS ref
					FROM new_rows AS x)
			SELECT kind, coalesce(n.ref, o.ref), actor, o.r, n.r
			FROM o FULL JOIN n ON o.ref = n.ref
				AND concat(o.r->>TG_ARGV[1], '/', o.r->>TG_ARGV[2]) = concat(n.r->>TG_ARGV[1], '/',
				n.r->>TG_ARGV[2])
			WHERE o.r - 'updated_at' IS DISTINCT FROM n.r - 'updated_at';
	END IF;
	RETURN NULL;
END $$;

-- Sets updated_at.
CREATE OR REPLACE FUNCTION rate_limit_touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.updated_at := now();
	RETURN NEW;
END $$;

DO $$
DECLARE
	logged record;
	event record;
BEGIN
	FOR logged IN SELECT * FROM (VALUES ('rate_limit_tiers', 'tier', 'tier', ''),
		('rate_limit_users', 'user', 'user_id', ''), ('rate_limit_api_keys', 'key', 'id', ''),
		('rate_limit_rules', 'rule', 'name', ''), ('rate_limit_rule_limits', 'limit', 'rule', 'name'),
			('rate_limit_overrides', 'override', 'id', ''),
		('rate_limit_bans', 'ban', 'id', ''),
		('rate_limit_prices', 'price', 'model', 'valid')) AS t(name, kind, key1, key2)
	LOOP
		IF logged.kind IN ('user', 'rule', 'price') THEN
			EXECUTE format('CREATE OR REPLACE TRIGGER rate_limit_touch BEFORE UPDATE ON %I FOR EACH ROW '
				'WHEN (OLD IS DISTINCT FROM NEW) EXECUTE FUNCTION rate_limit_touch()', logged.name);
		END IF;
		FOR event IN SELECT * FROM (VALUES ('insert', 'REFERENCING NEW TABLE AS changed_rows'),
			('delete', 'REFERENCING OLD TABLE AS changed_rows'),
			('update', 'REFERENCING OLD TABLE AS changed_rows NEW TABLE AS new_rows'),
				('truncate', '')) AS e(name, transition)
		LOOP
			EXECUTE format('CREATE OR REPLACE TRIGGER rate_limit_log_%s AFTER %s ON %I %s FOR EACH STATEMENT '
				'EXECUTE FUNCTION rate_limit_log_changes(%L, %L, %L)',
				event.name, event.name, logged.name, event.transition, logged.kind, logged.key1, logged.key2);
		END LOOP;
	END LOOP;
END $$;
