-- rate_limit_explain says how the policy sees a request, for people. It repeats in SQL what package
-- policy does: a test there compares both. Its request has neither headers nor a route.

CREATE OR REPLACE FUNCTION rate_limit_path_matches(pattern text, path text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(path ~ ('^' || regexp_replace(regexp_replace(regexp_replace(
		CASE WHEN pattern = '/' THEN '/' ELSE rtrim(pattern, '/') END, '([\\.+?^$(){}|\[\]])', '\\\1', 'g'),
		'/\*$', '(/.*)?'), '/\*(?=/|\()', '/[^/]+', 'g') || '$'), false);
COMMENT ON FUNCTION rate_limit_path_matches(text, text) IS 'Whether a path, without a slash at the end, matches a pattern of rate_limit_rules.paths.';

CREATE OR REPLACE FUNCTION rate_limit_host_matches(pattern text, host text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(CASE WHEN pattern LIKE '*.%' THEN right(lower(host), length(pattern) - 1) = lower(substr(pattern, 2)) AND length(host) > length(pattern) - 1
	ELSE lower(host) = trim(both '[]' FROM lower(pattern)) END, false);
COMMENT ON FUNCTION rate_limit_host_matches(text, text) IS 'Whether a host matches a pattern of rate_limit_rules.hosts.';

CREATE OR REPLACE FUNCTION rate_limit_network(network inet) RETURNS inet LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN network <<= '::ffff:0.0.0.0/96' THEN set_masklen(inet '0.0.0.0' + (network - inet '::ffff:0.0.0.0'), masklen(network) - 96) ELSE network END;
COMMENT ON FUNCTION rate_limit_network(inet) IS 'An address or a network of IPv4 in IPv6 form as IPv4, and any other as it is: proxies take both forms for one.';

CREATE OR REPLACE FUNCTION rate_limit_explain(
	key_digest bytea DEFAULT NULL, key_id bigint DEFAULT NULL, user_id text DEFAULT NULL, tier text DEFAULT 'anonymous',
	address inet DEFAULT NULL, method text DEFAULT 'GET', host text DEFAULT NULL, path text DEFAULT '/', at timestamptz DEFAULT NULL
) RETURNS TABLE (step int, kind text, name text, applies boolean, reason text, limit_name text, algorithm text, events bigint, burst bigint, per text, amount_from text)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
	moment CONSTANT timestamptz := coalesce(rate_limit_explain.at, now());
	found_key rate_limit_api_keys;
	sender text := rate_limit_explain.user_id;
	plan text := rate_limit_explain.tier;
	client CONSTANT inet := rate_limit_network(rate_limit_explain.address);
	said text;
BEGIN
	IF num_nonnulls(rate_limit_explain.key_digest, rate_limit_explain.key_id) > 0 THEN
		SELECT k.* INTO found_key FROM rate_limit_api_keys k WHERE k.digest = rate_limit_explain.key_digest OR k.id = rate_limit_explain.key_id;
		said := CASE WHEN found_key.id IS NULL THEN 'the key is unknown' WHEN found_key.revoked_at <= moment THEN 'the key was revoked at ' || found_key.revoked_at
			WHEN found_key.expires_at <= moment THEN 'the key expired at ' || found_key.expires_at ELSE 'the key ' || found_key.id || ' is valid' END;
		IF found_key.id IS NOT NULL AND said LIKE '%is valid' THEN sender := found_key.user_id; ELSE found_key := NULL; sender := NULL; END IF;
	END IF;
	SELECT u.tier INTO plan FROM rate_limit_users u WHERE u.user_id = sender AND u.tier_until > moment;
	plan := coalesce(plan, rate_limit_explain.tier);
	RETURN QUERY SELECT 1, 'identity', coalesce(sender, 'nobody'), true, concat_ws(', ', said, 'tier ' || plan), NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::text, NULL::text;
	RETURN QUERY SELECT 2, 'ban', coalesce(b.network::text, b.user_id, 'key ' || b.key_id), true, concat('until ', b.until, ': ' || b.reason),
		NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::text, NULL::text
		FROM rate_limit_bans b WHERE b.until > moment AND (rate_limit_network(b.network) >>= client OR b.user_id = sender OR b.key_id = found_key.id);
	RETURN QUERY
	WITH looked AS (
		SELECT r.*, concat_ws('; ',
			CASE WHEN r.mode = 'off' THEN 'mode: off' END,
			CASE WHEN NOT r.valid @> moment THEN 'valid: not at this time' END,
			CASE WHEN NOT r.tiers @> ARRAY[plan] THEN 'tiers: not ' || plan END,
			CASE WHEN r.networks IS NOT NULL AND NOT coalesce((SELECT bool_or(rate_limit_network(n) >>= client) FROM unnest(r.networks) AS n), false) THEN 'networks: not the address' END,
			CASE WHEN r.methods IS NOT NULL AND NOT upper(rate_limit_explain.method) IN (SELECT upper(m) FROM unnest(r.methods) AS m) THEN 'methods: not ' || rate_limit_explain.method END,
			CASE WHEN NOT (SELECT bool_or(rate_limit_host_matches(h, rate_limit_explain.host)) FROM unnest(r.hosts) AS h) THEN 'hosts: not the host' END,
			CASE WHEN NOT (SELECT bool_or(rate_limit_path_matches(p, rate_limit_explain.path)) FROM unnest(r.paths) AS p) THEN 'paths: not the path' END,
			CASE WHEN r.action = 'limit' AND 'key' = ANY (r.count_by) AND found_key.id IS NULL THEN 'count_by: no key' END,
			CASE WHEN r.action = 'limit' AND rate_limit_explain.address IS NULL AND (r.count_by && '{ip,ip/64}' OR 'user' = ANY (r.count_by) AND sender IS NULL) THEN 'count_by: no address' END,
			CASE WHEN r.action = 'limit' AND 'host' = ANY (r.count_by) AND rate_limit_explain.host IS NULL THEN 'count_by: no host' END,
			CASE WHEN r.action = 'limit' AND 'route' = ANY (r.count_by) THEN 'count_by: no route' END,
			CASE WHEN r.action = 'limit' AND r.without_header = 'skip' THEN (SELECT string_agg('count_by: no ' || c, '; ') FROM unnest(r.count_by) AS c WHERE c LIKE 'header:%') END
		) AS refusal FROM rate_limit_rules r
	), ordered AS (
		SELECT l.*, CASE l.action WHEN 'exempt' THEN 3 WHEN 'block' THEN 4 ELSE 5 END AS at_step,
			-- The rule of the same family that comes first, if there is one.
			(SELECT f.name FROM looked f WHERE l.family IS NOT NULL AND f.family = l.family AND f.action = 'limit' AND l.action = 'limit' AND f.mode = 'enforce' AND f.refusal = ''
				AND (f.priority > l.priority OR f.priority = l.priority AND f.name < l.name) ORDER BY f.priority DESC, f.name LIMIT 1) AS before
		FROM looked l
	)
	SELECT o.at_step, o.action, o.name, o.refusal = '' AND o.before IS NULL,
		CASE WHEN o.refusal <> '' THEN o.refusal WHEN o.before IS NOT NULL THEN 'family ' || o.family || ': ' || o.before || ' comes first'
			WHEN o.mode = 'shadow' THEN 'matches, in the shadow' ELSE 'matches' END,
		l.name, l.algorithm, CASE WHEN v.id IS NULL THEN l.events ELSE v.events END, CASE WHEN v.id IS NULL THEN l.burst ELSE coalesce(v.burst, l.burst) END,
		coalesce(l.per::text, l.calendar),
		CASE WHEN l.name IS NULL THEN NULL WHEN v.id IS NULL THEN 'rule' WHEN v.key_id IS NOT NULL THEN 'key' WHEN v.user_id IS NOT NULL THEN 'user' ELSE 'tier' END
	FROM ordered o
	LEFT JOIN rate_limit_rule_limits l ON l.rule = o.name AND o.action = 'limit'
	LEFT JOIN LATERAL (
		SELECT x.* FROM rate_limit_overrides x WHERE x.rule = l.rule AND x.limit_name = l.name AND x.valid @> moment
			AND (x.key_id = found_key.id OR x.user_id = sender OR x.tier = plan)
		ORDER BY x.key_id NULLS LAST, x.user_id NULLS LAST, lower(x.valid) DESC NULLS LAST, x.id DESC LIMIT 1
	) v ON true
	ORDER BY o.at_step, o.priority DESC, o.name, l.name;
END $$;
COMMENT ON FUNCTION rate_limit_explain IS
	'How the policy sees a request: the identity, the bans, and each rule with its limits, whether it applies and why not. It charges nothing. The key is given by its digest or its id.';
