SELECT rate_limit_tier('free');
SELECT rate_limit_user(u, tier => 'free') FROM unnest('{org,banned}'::text[]) u;
SELECT rate_limit_user('ann', tier => 'free', parent => 'org');
INSERT INTO rate_limit_api_keys (digest, user_id, name)
	SELECT sha256(u::bytea), u, 'k' FROM unnest('{ann,banned}'::text[]) u;
SELECT rate_limit_ban(user_id => 'banned'), rate_limit_rule('block', action => 'block', paths => '{/block}'),
	rate_limit_rule('exempt', action => 'exempt', paths => '{/exempt}');
SELECT rate_limit_rule(a, paths => ARRAY['/' || a], algorithm => a, count_by => '{user}', per_day => 3)
	FROM unnest('{sliding_window,fixed_window,token_bucket,gcra,sliding_log}'::text[]) a;
SELECT rate_limit_rule('tier', paths => '{/tier,/exempt}', count_by => '{user}', tiers => '{free}',
		per_day => 3),
	rate_limit_rule('key', paths => '{/key}', count_by => '{key}', per_day => 1),
	rate_limit_rule('hold', paths => '{/hold}', count_by => '{all}', in_flight => 1);
SELECT rate_limit_override('key', 'per_day', '3', key_id => k.id) FROM rate_limit_api_keys k;
SELECT rate_limit_price('m', 1, 1), rate_limit_rule('model', paths => '{/model}', methods => '{POST}',
		count_by => '{user}',
		limits => ARRAY['tokens=1000 tokens/24h', 'money=1 money/1mo calendar' || noon]),
	rate_limit_rule('calendar', paths => '{/calendar}', count_by => '{user}',
		limits => ARRAY['per_month=3/1mo calendar' || noon])
	FROM (SELECT CASE WHEN extract(hour FROM now() AT TIME ZONE 'UTC') NOT BETWEEN 6 AND 17
		THEN ' Pacific/Tarawa' ELSE '' END) AS zone(noon) -- far from midnight, where no window turns
