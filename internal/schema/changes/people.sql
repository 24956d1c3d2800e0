-- Tiers, users and API keys: what their columns mean, the functions that change them, and how commands show
-- them. Arguments are as in functions.sql.

-- TABLE rate_limit_tiers: The plans that users can be on, such as free and pro.
--   tier: The name, as in rate_limit_rules.tiers.
--   rank: The order of tiers in lists, lowest first. It has no effect on requests.
--   comment: A note. Proxies ignore it.

-- Creates or changes a tier.
CREATE OR REPLACE FUNCTION rate_limit_tier(tier text, rank bigint DEFAULT NULL, comment text DEFAULT NULL,
	reset text[] DEFAULT NULL) RETURNS text LANGUAGE sql
	AS $$ SELECT rate_limit_set('rate_limit_tiers', '{tier}', to_jsonb(f), reset)
		FROM (SELECT tier, rank, comment) AS f $$;

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

-- The tiers with their users, API keys and rules.
--   users: The number of users on the tier.
--   keys: The number of API keys with this tier of their own.
--   rules: The rules for the tier, including rules that are for other tiers, too.
--   problems: That no rule limits its users, as in rate_limit_unlimited.
CREATE OR REPLACE VIEW rate_limit_tier_states WITH (security_invoker) AS
	SELECT t.tier, t.rank, (SELECT count(*) FROM rate_limit_users u WHERE u.tier = t.tier) AS users,
		(SELECT count(*) FROM rate_limit_api_keys k WHERE k.tier = t.tier) AS keys,
		ARRAY(SELECT r.name FROM rate_limit_rules r WHERE t.tier = ANY (r.tiers) ORDER BY r.name)
			AS rules, t.comment,
		CASE WHEN n.users = 1 THEN '{no rule limits its user}' WHEN n.users > 1
			THEN ARRAY[format('no rule limits its %s users', n.users)] END AS problems
	FROM rate_limit_tiers t LEFT JOIN rate_limit_unlimited() n ON n.tier = t.tier;

-- TABLE rate_limit_users: The users of the API, each on one tier.
--   user_id: The user's name in the application or the proxy. Limits by user count by it.
--   tier: The tier until tier_until.
--   tier_until: When the tier ends. Then the user has the tier anonymous. infinity: never.
--   period_start: A day on which a month of the invoice starts. In limits that count by user or key, the
--     user's months and years start on this day, too. NULL: calendar months and years.
--   time_zone: The IANA name of the time zone in which the months of the invoice start at midnight: UTC or a
--     place. A link such as US/Eastern becomes its target. UTC without period_start: see rate_limit_billing.
--   comment: A note. Proxies ignore it.
--   created_at: When the row was created.
--   updated_at: When the row was last changed.
--   parent: The user above, such as a team or an organization. Its limits by user apply to the requests of
--     all users below it, too. NULL: none.
--   parent_level: The level of the parent. The database sets it.
--   level: 1 without a parent, and otherwise one more than the parent's, at most 4. The database sets it.
--   counted_as: The first name of a renamed user, by which it counts and is in the ledger. A new user with a
--     name by which another one counts gets another name here. NULL: the user counts by its name.

-- Sets the overrides of a user or an API key, as rate_limit_user does with its argument overrides. Returns
-- made.
CREATE OR REPLACE FUNCTION rate_limit_set_overrides(made text, overrides text[], user_id text, key_id bigint
	DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	o record;
BEGIN
	FOR o IN SELECT f AS text, m[1] AS rule, m[2] AS name, m[3] AS burst, m[4] AS amount
		FROM unnest(overrides) AS f LEFT JOIN LATERAL regexp_match(f,
			'^([^/=]+)/([^=]+?)(?:[.]burst=(\d{0,18})|=([\d.]*|unlimited))$') AS m ON true
	LOOP
		IF o.rule IS NULL THEN
			RAISE EXCEPTION 'overrides: %: must be as in free/per_hour=5000, free/per_hour=unlimited or '
				'free/per_hour.burst=20', to_json(o.text) USING ERRCODE = 'invalid_parameter_value';
		ELSIF o.amount IS DISTINCT FROM '' THEN
			PERFORM rate_limit_override(o.rule, o.name, o.amount, NULL, $3, $4, nullif(o.burst, '')::bigint,
				reset => CASE o.burst WHEN '' THEN '{burst}' END::text[]);
		ELSIF NOT rate_limit_delete_override(o.rule, o.name, NULL, $3, $4)
			AND NOT EXISTS (SELECT FROM rate_limit_rule_limits l WHERE (l.rule, l.name) = (o.rule, o.name))
		THEN
			RAISE EXCEPTION '%/%: no such limit', o.rule, o.name USING ERRCODE = 'no_data_found';
		END IF;
	END LOOP;
	RETURN made;
END $$;

-- Creates or changes a user. A new user needs a tier. overrides are as in free/per_hour=5000,
-- free/per_hour=unlimited and free/per_hour.burst=20. Without a value, as in free/per_hour=, the override is
-- deleted.
CREATE OR REPLACE FUNCTION rate_limit_user(user_id text, tier text DEFAULT NULL,
	tier_until timestamptz DEFAULT NULL, period_start date DEFAULT NULL, time_zone text DEFAULT NULL,
	comment text DEFAULT NULL, overrides text[] DEFAULT NULL, reset text[] DEFAULT NULL,
	parent text DEFAULT NULL) RETURNS text
	LANGUAGE sql AS $$ SELECT rate_limit_set_overrides(rate_limit_set('rate_limit_users', '{user_id}',
			to_jsonb(f), reset), overrides, user_id)
		FROM (SELECT user_id, tier, tier_until, period_start, time_zone, comment, parent) AS f $$;

-- Fails if a user is the parent of others.
CREATE OR REPLACE FUNCTION rate_limit_refuse_parent(user_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM rate_limit_refuse(format('user: %s: must not be the parent of other users: give these %s another '
		'parent first', to_json($1), count(*)), 'foreign_key_violation')
		FROM rate_limit_users u WHERE u.parent = $1 HAVING count(*) > 0;
END $$;

-- Deletes a user with its API keys, their bans, and its overrides, and returns whether it existed. It fails
-- if the user is the parent of others.
CREATE OR REPLACE FUNCTION rate_limit_delete_user(user_id text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM rate_limit_refuse_parent($1);
	DELETE FROM rate_limit_users u WHERE u.user_id = $1;
	RETURN FOUND;
END $$;

-- The users and their states.
--   state: banned, also as one of the users above it is; blocked: an override of 0 refuses the user; or
--     active.
CREATE OR REPLACE VIEW rate_limit_user_states WITH (security_invoker) AS
	SELECT u.user_id, u.tier, CASE WHEN EXISTS (SELECT FROM rate_limit_lineage(u.user_id) l
		JOIN rate_limit_bans b ON b.user_id = l.user_id AND b.until > now()) THEN 'banned'
		WHEN EXISTS (SELECT FROM rate_limit_overrides o WHERE o.user_id = u.user_id AND o.events = 0
			AND o.valid @> now()) THEN 'blocked' ELSE 'active' END AS state, u.parent, u.tier_until,
		u.period_start, u.time_zone, u.comment, u.counted_as, u.created_at, u.updated_at
	FROM rate_limit_users u;

-- TABLE rate_limit_api_keys: The API keys of users. Only the digests of keys are stored.
--   id: The number of the key. Limits that count by key count by it, unless counted_as is given.
--   digest: The SHA-256 of the whole key: sha256(convert_to('the key', 'UTF8')). If a key of your own begins
--     with prl_, proxies refuse it, because it lacks the checksum of keys create.
--   hint: The first characters of the key, to recognize it.
--   name: The purpose of the key.
--   user_id: The user of the key. All keys of a user share the limits that count by user.
--   expires_at: When the key expires. infinity: never.
--   revoked_at: When the key is revoked, possibly in the future. NULL: it is not revoked.
--   revoked_by: The role or the person that revoked the key.
--   replaced_by: The key that replaced this key.
--   counted_as: The key with which this key shares its counters in limits that count by key: the first of the
--     keys that replaced each other. NULL: the key has its own counters.
--   created_at: When the row was created.
--   tier: The tier of requests with the key. NULL: the user's tier.

-- Changes an API key. overrides are as in rate_limit_user. reset => '{revoked_at}' restores a revoked key.
--
-- A constraint allows revoked_by only with revoked_at, so a reset of revoked_at clears both columns.
CREATE OR REPLACE FUNCTION rate_limit_key(id bigint, tier text DEFAULT NULL, name text DEFAULT NULL,
	expires_at timestamptz DEFAULT NULL, overrides text[] DEFAULT NULL, reset text[] DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM rate_limit_api_keys k WHERE k.id = $1 FOR UPDATE;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'key: %: must be the id of an API key', $1 USING ERRCODE = 'no_data_found';
	END IF;
	RETURN rate_limit_set_overrides(rate_limit_set('rate_limit_api_keys', '{id}', jsonb_build_object('id', $1,
		'tier', $2, 'name', $3, 'expires_at', $4, 'revoked_at', NULL, 'revoked_by', NULL),
		CASE WHEN 'revoked_at' = ANY ($6) THEN $6 || '{revoked_by}' ELSE $6 END), $5, NULL, $1);
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

-- The API keys, without their digests, and their states.
--   state: valid, expired, revoked, or banned: the key, its user, or a user above it is banned.
CREATE OR REPLACE VIEW rate_limit_key_states WITH (security_invoker) AS
	SELECT k.id, k.hint, k.name, k.user_id, k.tier, CASE WHEN k.revoked_at <= now() THEN 'revoked'
		WHEN k.expires_at <= now() THEN 'expired'
		WHEN EXISTS (SELECT FROM rate_limit_bans b WHERE b.key_id = k.id AND b.until > now())
			OR EXISTS (SELECT FROM rate_limit_lineage(k.user_id) l JOIN rate_limit_bans b
				ON b.user_id = l.user_id AND b.until > now())
			THEN 'banned' ELSE 'valid' END AS state,
		k.expires_at, k.revoked_at, k.revoked_by, k.replaced_by, k.created_at
	FROM rate_limit_api_keys k;
