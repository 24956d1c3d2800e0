-- Overrides and bans.

-- TABLE rate_limit_overrides: Amounts that replace the amount of a limit for a tier, a user or an API key.
-- The override for the key applies, otherwise the override for the user, otherwise the override for the tier.
-- If several overrides of the same kind are valid, the one that became valid last applies.
--   id: The number of the override.
--   rule: The rule of the limit.
--   limit_name: The name of the limit.
--   tier: For all users of this tier.
--   user_id: For this user.
--   key_id: For this API key.
--   events: The amount in place of the limit's amount, in millionths for money. 0: nothing passes. NULL:
--     unlimited.
--   burst: The burst in place of the limit's burst. NULL: the limit's burst.
--   valid: When the override applies.
--   reason: A note. Proxies ignore it.
--   created_at: When the row was created.
--   created_by: The role that created the row.

-- Postgres inlines this body (see rate_limit_counters) and finds the rows by their indexes. The body is a
-- string and not BEGIN ATOMIC, because a parsed body would depend on the tables, and DROP TABLE would fail.
DO $do$ BEGIN
	EXECUTE replace($sql$

-- The override that now replaces the amount of a limit for a user or an API key. Proxies choose it in the
-- same way. No row: the limit has its own amount.
CREATE OR REPLACE FUNCTION rate_limit_override_of(rule text, limit_name text, user_id text, key_id bigint)
RETURNS TABLE (id bigint, events bigint, burst bigint) LANGUAGE sql STABLE AS $$
	SELECT o.id, o.events, o.burst FROM {schema}.rate_limit_overrides o
	WHERE o.rule = $1 AND o.limit_name = $2 AND o.valid @> now() AND (o.key_id = $4
		OR o.user_id = coalesce($3, (SELECT k.user_id FROM {schema}.rate_limit_api_keys k WHERE k.id = $4))
		OR o.tier = (SELECT coalesce(k.tier, CASE WHEN u.tier_until > now() THEN u.tier END)
			FROM (SELECT) AS s LEFT JOIN {schema}.rate_limit_api_keys k ON k.id = $4
				LEFT JOIN {schema}.rate_limit_users u ON u.user_id = coalesce($3, k.user_id)))
	ORDER BY o.key_id NULLS LAST, o.user_id NULLS LAST, lower(o.valid) DESC NULLS LAST, o.id DESC LIMIT 1
$$;
$sql$, '{schema}', quote_ident(current_schema()));
END $do$;

-- TABLE rate_limit_bans: The banned networks, users and API keys. Deleting the row lifts the ban.
--   id: The number of the ban.
--   network: All addresses of this network.
--   user_id: This user, who need not be in rate_limit_users.
--   key_id: This API key.
--   until: When the ban ends. infinity: never.
--   reason: A note. Clients do not see it.
--   banned_at: When rate_limit_ban last set this ban.
--   banned_by: The role that last set this ban.
