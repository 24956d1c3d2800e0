SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") FROM (
	SELECT 'tier ' || to_jsonb(t)::text AS line FROM rate_limit_tiers t
	UNION ALL SELECT 'user ' || (to_jsonb(t) - '{created_at,updated_at}'::text[])::text
		FROM rate_limit_users t
	UNION ALL SELECT 'key ' || (to_jsonb(t) - '{id,replaced_by,counted_as,created_at}'::text[])::text
		|| concat(n.digest, c.digest) FROM rate_limit_api_keys t
		LEFT JOIN rate_limit_api_keys n ON n.id = t.replaced_by
		LEFT JOIN rate_limit_api_keys c ON c.id = t.counted_as
	UNION ALL SELECT 'rule ' || (to_jsonb(t) - '{created_at,created_by,updated_at}'::text[])::text
		FROM rate_limit_rules t
	UNION ALL SELECT 'limit ' || (to_jsonb(t) || jsonb_build_object('per', extract(epoch FROM per)))::text
		FROM rate_limit_rule_limits t
	UNION ALL SELECT 'override ' || (to_jsonb(t) - '{id,key_id,created_at,created_by}'::text[])::text
		|| coalesce(n.digest::text, '') FROM rate_limit_overrides t
		LEFT JOIN rate_limit_api_keys n ON n.id = t.key_id) AS all_rows
