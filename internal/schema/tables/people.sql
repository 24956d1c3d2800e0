-- Tiers, users and API keys: what parents do to levels.

-- TABLE rate_limit_tiers: The plans that users can be on, such as free and pro.
--   tier: The name, as in rate_limit_rules.tiers.
--   rank: The order of tiers in lists, lowest first. It has no effect on requests.
--   comment: A note. Proxies ignore it.

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

-- Sets the level of a user, and of its parent.
--
-- For a table that was empty when it was analyzed, Postgres would plan to read all rows, for each new one.
CREATE OR REPLACE FUNCTION rate_limit_set_level() RETURNS trigger LANGUAGE plpgsql
	SET enable_seqscan = off AS $$
BEGIN
	SELECT u.level INTO NEW.parent_level FROM rate_limit_users u WHERE u.user_id = NEW.parent;
	IF NEW.parent_level IS NULL AND NEW.parent IS NOT NULL THEN
		RAISE foreign_key_violation USING MESSAGE = format('parent: %s: must be in rate_limit_users',
			to_json(NEW.parent));
	END IF;
	NEW.level := coalesce(NEW.parent_level, 0) + 1;
	RETURN NEW;
END $$;

-- A dump of rows alone, which sets the search_path to '', has the levels, and can have a user before its
-- parent. An application can set the search_path to '', too.
CREATE OR REPLACE TRIGGER rate_limit_set_level BEFORE INSERT ON rate_limit_users FOR EACH ROW
	WHEN (NEW.parent_level IS NULL OR current_setting('search_path') NOT IN ('', '""'))
	EXECUTE FUNCTION rate_limit_set_level();
CREATE OR REPLACE TRIGGER rate_limit_change_level BEFORE UPDATE OF parent, parent_level ON rate_limit_users
	FOR EACH ROW EXECUTE FUNCTION rate_limit_set_level();

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

-- Postgres inlines this body: see rate_limit_override_of.
DO $do$ BEGIN
	EXECUTE replace($sql$
-- A user, the users above it, and the names by which they count. place is 0 for the user itself.
CREATE OR REPLACE FUNCTION rate_limit_lineage(user_id text)
RETURNS TABLE (user_id text, counts text, place int) LANGUAGE sql STABLE ROWS 2 AS $$
	WITH RECURSIVE up AS (
		SELECT $1 AS user_id, coalesce(u.counted_as, $1) AS counts, u.parent, 0 AS place
		FROM (SELECT) AS s LEFT JOIN {schema}.rate_limit_users u ON u.user_id = $1
		UNION ALL SELECT p.user_id, coalesce(p.counted_as, p.user_id), p.parent, up.place + 1
		FROM up JOIN {schema}.rate_limit_users p ON p.user_id = up.parent WHERE up.place < 3
	) SELECT up.user_id, up.counts, up.place FROM up
$$;
$sql$, '{schema}', quote_ident(current_schema()));
END $do$;
