-- The table by which proxies learn of changes.

CREATE TABLE IF NOT EXISTS rate_limit_changes (
	seq    bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT rate_limit_changes_pkey PRIMARY KEY,
	xid    xid8 NOT NULL DEFAULT pg_current_xact_id(),
	kind   text NOT NULL,
	ref    text,
	at     timestamptz NOT NULL DEFAULT now(),
	by     text NOT NULL,
	before jsonb,
	after  jsonb,
	CONSTRAINT kind_must_be_what_a_table_holds CHECK (kind IN ('tier', 'user', 'key', 'rule', 'limit', 'override', 'ban', 'pause'))
);
CREATE INDEX IF NOT EXISTS rate_limit_changes_xid ON rate_limit_changes (xid);
CREATE INDEX IF NOT EXISTS rate_limit_changes_at ON rate_limit_changes (at);
COMMENT ON TABLE rate_limit_changes IS 'What was changed in the tables of the policy, for 30 days. Triggers write it, proxies poll it.';
COMMENT ON COLUMN rate_limit_changes.seq IS 'The order in which the lines were written. Lines of other transactions may become visible later.';
COMMENT ON COLUMN rate_limit_changes.xid IS 'The transaction. Proxies use it to find what has become visible since their last poll.';
COMMENT ON COLUMN rate_limit_changes.kind IS 'What was changed: a tier, user, key, rule, limit, override, ban, or the pause of all limits.';
COMMENT ON COLUMN rate_limit_changes.ref IS
	'Which one: the name of a tier or rule, rule/limit, the user, the hexadecimal digest of a key; for an override or a ban what it is for: tier/..., user/..., key/<digest>, network/.... NULL: all, because one statement changed more than 1,000 rows, or emptied the table.';
COMMENT ON COLUMN rate_limit_changes.at IS 'When the transaction began.';
COMMENT ON COLUMN rate_limit_changes.by IS 'The role that made the change, and in parentheses the person, if the setting rate_limit.person has a name.';
COMMENT ON COLUMN rate_limit_changes.before IS 'The row before. NULL: it is new.';
COMMENT ON COLUMN rate_limit_changes.after IS 'The row after. NULL: it was deleted.';

-- What a transaction did to the policy can be taken back while nothing newer has touched its rows: what it deleted is
-- made again first, then what it changed is changed back, and last what it made is deleted, so that rows always have what
-- they refer to. What a cascade has deleted with a row has lines of its own.
CREATE OR REPLACE FUNCTION rate_limit_undo(change bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	undone CONSTANT rate_limit_changes := (SELECT c FROM rate_limit_changes c WHERE c.seq = $1);
	began CONSTANT bigint := (SELECT max(seq) FROM rate_limit_changes);
	line record;
	same text;
	was jsonb;
	names text;
	taken bigint := 0;
BEGIN
	IF undone.seq IS NULL THEN
		RAISE EXCEPTION 'change: %: must be the number of a change, as in rate_limit_changes.seq', change USING ERRCODE = 'no_data_found';
	END IF;
	SET CONSTRAINTS ALL DEFERRED;
	FOR line IN SELECT c.*, t.name, t.keys, t.step FROM rate_limit_changes c LEFT JOIN LATERAL (SELECT k.*,
				CASE WHEN c.before IS NULL THEN 100 - k.rank WHEN c.after IS NULL THEN k.rank ELSE 50 + k.rank END AS step
			FROM (VALUES (1, 'tier', 'rate_limit_tiers', '{tier}'::text[]), (2, 'user', 'rate_limit_users', '{user_id}'), (3, 'key', 'rate_limit_api_keys', '{id}'), (4, 'rule', 'rate_limit_rules', '{name}'),
				(5, 'limit', 'rate_limit_rule_limits', '{rule,name}'), (6, 'override', 'rate_limit_overrides', '{id}'), (7, 'ban', 'rate_limit_bans', '{id}')) AS k(rank, kind, name, keys)
			WHERE k.kind = c.kind) t ON true
		WHERE c.xid = undone.xid AND c.at = undone.at ORDER BY t.step NULLS FIRST, c.seq
	LOOP
		IF line.kind = 'pause' THEN
			RAISE EXCEPTION 'change: %: is the pause of all limits, which begins and ends with the commands pause and resume', change USING ERRCODE = 'feature_not_supported';
		END IF;
		IF line.name IS NULL OR num_nonnulls(line.before, line.after) = 0 THEN
			RAISE EXCEPTION 'change: %: cannot be taken back: its lines do not say what the rows were', change USING ERRCODE = 'feature_not_supported';
		END IF;
		-- The row that is there now must be as the transaction left it. A row that it deleted may not be there again.
		SELECT string_agg(format('t.%1$I = r.%1$I', k), ' AND ') INTO same FROM unnest(line.keys) AS k;
		EXECUTE format('SELECT to_jsonb(t) FROM %1$I t, jsonb_populate_record(NULL::%1$I, $1) r WHERE %2$s FOR UPDATE OF t', line.name, same) INTO was USING coalesce(line.after, line.before);
		IF was IS NULL AND line.before IS NULL THEN
			CONTINUE WHEN EXISTS (SELECT FROM rate_limit_changes c WHERE c.xid = pg_current_xact_id() AND c.kind = line.kind AND c.ref = line.ref AND c.after IS NULL); -- a cascade was faster
		END IF;
		IF was - 'updated_at' IS DISTINCT FROM line.after - 'updated_at' THEN
			RAISE EXCEPTION 'change: %: cannot be taken back: something newer has changed the % %', change, line.kind, coalesce(line.ref, '') USING ERRCODE = 'object_not_in_prerequisite_state';
		END IF;
		SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) INTO names FROM pg_attribute a WHERE a.attrelid = line.name::regclass AND a.attnum > 0 AND NOT a.attisdropped;
		IF line.after IS NULL THEN
			EXECUTE format('INSERT INTO %1$I (%2$s) SELECT %2$s FROM jsonb_populate_record(NULL::%1$I, $1)', line.name, names) USING line.before;
		ELSIF line.before IS NULL THEN
			EXECUTE format('DELETE FROM %1$I t USING jsonb_populate_record(NULL::%1$I, $1) r WHERE %2$s', line.name, same) USING line.after;
		ELSE
			EXECUTE format('UPDATE %1$I t SET (%2$s) = (SELECT %2$s FROM jsonb_populate_record(NULL::%1$I, $2)) FROM jsonb_populate_record(NULL::%1$I, $1) r WHERE %3$s', line.name, names, same)
				USING line.after, line.before;
		END IF;
		taken := taken + 1;
	END LOOP;
	-- What has been made since would go with a row that it refers to.
	SELECT c.kind, c.ref INTO line FROM rate_limit_changes c WHERE c.xid = pg_current_xact_id() AND c.seq > began AND c.after IS NULL AND NOT EXISTS (
		SELECT FROM rate_limit_changes made WHERE made.xid = undone.xid AND made.at = undone.at AND made.kind = c.kind AND made.after - 'updated_at' = c.before - 'updated_at') LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'change: %: cannot be taken back: the % %, which is newer, would be deleted', change, line.kind, coalesce(line.ref, '') USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	RETURN taken;
END $$;
COMMENT ON FUNCTION rate_limit_undo(bigint) IS
	'Takes back what the transaction of a line of rate_limit_changes did to the policy, and returns how many rows it changed. It fails if something newer has touched one of them, or would be deleted with one.';
