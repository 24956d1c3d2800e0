UPDATE rate_limit_api_keys SET expires_at = now() - interval '1 s' WHERE id = 2;
UPDATE rate_limit_api_keys SET revoked_at = now() WHERE id = 3;
SELECT rate_limit_rule('plan', per_hour => 1000);
SELECT rate_limit_rule('each_key', count_by => '{key}', per_hour => 1000);
SELECT rate_limit_rule('header', count_by => '{header:X-Api-Key}', per_hour => 1000);
SELECT rate_limit_rule('other', count_by => '{header:X-Customer}', per_hour => 1000);
SELECT rate_limit_rule('bearer', count_by => '{header:Authorization,user}', mode => 'shadow',
	per_hour => 1);
