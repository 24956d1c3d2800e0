SELECT rate_limit_rule('either', count_by => '{user|ip}', paths => '{/attacked/*}', per_second => 100000);
SELECT rate_limit_rule('tenant', count_by => '{header:X-Tenant|header:X-Api-Key|ip,route}',
	paths => '{/attacked/*}', per_minute => 100);
SELECT rate_limit_rule('slow', count_by => '{all}', paths => '{/attacked/slow/*}', per_hour => 10,
	status => 402, message => 'pay');
SELECT rate_limit_rule('trial', count_by => '{header:X-User|user}', paths => '{/attacked/*}',
	mode => 'shadow', per_hour => 1)
