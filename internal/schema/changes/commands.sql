-- Functions that change rows of several tables, or refuse to delete a row in use.

-- Deletes an unused tier, and returns whether it existed. It fails if the tier is used.
CREATE OR REPLACE FUNCTION rate_limit_delete_tier(tier text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF $1 = 'anonymous' THEN
		RAISE EXCEPTION 'tier: %: must stay: it is the tier of requests without a user', to_json($1)
			USING ERRCODE = 'check_violation';
	END IF;
	-- The lock prevents users and keys from getting the tier while it is deleted.
	PERFORM FROM rate_limit_tiers t WHERE t.tier = $1 FOR UPDATE;
	PERFORM rate_limit_refuse('tier: ' || to_json($1) || ': is used by ' || string_agg(u.what, ', '
			ORDER BY u.place, u.what) || ': change or delete these first, or see: pg-ratelimit tiers rename',
		'foreign_key_violation') FROM (
		SELECT u.place, u.n || ' ' || u.what || CASE u.n WHEN 1 THEN '' ELSE 's' END AS what
		FROM (VALUES (1, 'user', (SELECT count(*) FROM rate_limit_users o WHERE o.tier = $1)),
			(2, 'API key', (SELECT count(*) FROM rate_limit_api_keys o WHERE o.tier = $1)),
			(3, 'override', (SELECT count(*) FROM rate_limit_overrides o WHERE o.tier = $1))) AS u(place,
				what, n) WHERE u.n > 0
		UNION ALL SELECT 4, format('the rule "%s"', r.name) FROM rate_limit_rules r
			WHERE $1 = ANY (r.tiers)) AS u;
	DELETE FROM rate_limit_tiers t WHERE t.tier = $1;
	RETURN FOUND;
END $$;

-- Renames a rule or a tier in all rows that refer to it. kind is rule or tier. Returns whether it existed. A
-- renamed rule keeps its counters.
CREATE OR REPLACE FUNCTION rate_limit_rename(kind text, name text, new text) RETURNS boolean
	LANGUAGE plpgsql AS $$
DECLARE
	fault text;
	message text;
BEGIN
	IF kind = 'tier' THEN
		UPDATE rate_limit_tiers t SET tier = $3 WHERE t.tier = $2;
	ELSIF kind = 'rule' THEN
		UPDATE rate_limit_rules r SET name = $3 WHERE r.name = $2;
	ELSE
		RAISE EXCEPTION 'kind: %: must be rule or tier', to_json(kind)
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	RETURN FOUND;
EXCEPTION WHEN unique_violation THEN
	RAISE check_violation USING MESSAGE = format('%s: %s: must be a name that no %1$s has', $1, to_json($3));
WHEN integrity_constraint_violation THEN
	GET STACKED DIAGNOSTICS fault = CONSTRAINT_NAME, message = MESSAGE_TEXT;
	RAISE check_violation USING MESSAGE = rate_limit_fault(fault, message, NULL,
		jsonb_build_object('tier', $3, 'name', $3));
END $$;

-- Revokes an API key now. Returns false if the key was revoked before, or does not exist.
CREATE OR REPLACE FUNCTION rate_limit_revoke_key(key_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	UPDATE rate_limit_api_keys k SET revoked_at = now(), revoked_by = session_user WHERE k.id = $1
		AND (k.revoked_at IS NULL OR k.revoked_at > now());
	RETURN FOUND;
END $$;

-- Creates an API key in place of a valid one, with its name, tier, end, counters, overrides and bans. The old
-- key ends after the grace. digest is the SHA-256 of the new key, and hint its first characters.
CREATE OR REPLACE FUNCTION rate_limit_rotate_key(key_id bigint, grace interval, digest bytea,
	hint text DEFAULT NULL) RETURNS TABLE (id bigint, replaces bigint, replaced_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
	old rate_limit_api_keys;
BEGIN
	SELECT k.* INTO old FROM rate_limit_api_keys k WHERE k.id = $1 FOR UPDATE;
	IF ($2 BETWEEN '0' AND '36525 days') IS NOT TRUE THEN
		RAISE EXCEPTION 'grace: %: must be 0 to 36525 days', to_json($2)
			USING ERRCODE = 'invalid_parameter_value';
	ELSIF (octet_length($3) = 32) IS NOT TRUE THEN
		RAISE invalid_parameter_value USING MESSAGE = format('digest: %s bytes: must be a sha256 of 32 bytes',
			coalesce(octet_length($3), 0));
	ELSIF old.id IS NULL THEN
		RAISE EXCEPTION 'key: %: must be the id of an API key', $1 USING ERRCODE = 'no_data_found';
	ELSIF old.replaced_by IS NOT NULL THEN
		RAISE EXCEPTION 'key: %: was already replaced by the key %', $1, old.replaced_by
			USING ERRCODE = 'object_not_in_prerequisite_state';
	ELSIF least(old.revoked_at, old.expires_at) <= now() THEN
		RAISE EXCEPTION 'key: %: is %: to make a new key, run: pg-ratelimit keys create', $1, CASE
			WHEN old.revoked_at <= now() THEN 'revoked' ELSE 'expired' END
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	INSERT INTO rate_limit_api_keys AS k (digest, hint, user_id, name, expires_at, tier, counted_as)
		VALUES ($3, $4, old.user_id, old.name, old.expires_at, old.tier, coalesce(old.counted_as, old.id))
		RETURNING k.id, $1 INTO id, replaces;
	INSERT INTO rate_limit_overrides (rule, limit_name, key_id, events, burst, valid, reason)
		SELECT o.rule, o.limit_name, rate_limit_rotate_key.id, o.events, o.burst, o.valid, o.reason
			FROM rate_limit_overrides o WHERE o.key_id = $1;
	INSERT INTO rate_limit_bans (key_id, until, reason, banned_at, banned_by)
		SELECT rate_limit_rotate_key.id, b.until, b.reason, b.banned_at, b.banned_by FROM rate_limit_bans b
			WHERE b.key_id = $1;
	UPDATE rate_limit_api_keys k SET revoked_at = least(k.revoked_at, now() + $2), revoked_by = session_user,
		replaced_by = rate_limit_rotate_key.id WHERE k.id = $1
		RETURNING least(k.revoked_at, k.expires_at) INTO replaced_at;
	RETURN NEXT;
END $$;
