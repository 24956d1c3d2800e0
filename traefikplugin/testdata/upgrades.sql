INSERT INTO rate_limit_users (user_id, tier, parent) VALUES ('carl', 'pro', 'alice'), ('dora', 'free',
	NULL),
	('eve', 'free', NULL);
SELECT rate_limit_rule('each', per_hour => 100, count_by => '{all}');
SELECT rate_limit_rule('plan', tiers => '{free}', methods => '{POST}', count_by => '{user}',
	paths => '{/v1/*,/app/*,/get/*,/mixed/*}', limits => '{tpm=1000 tokens/1h}');
SELECT rate_limit_override('plan', 'tpm', 'unlimited', user_id => 'dora');
SELECT rate_limit_ban(user_id => 'eve');
SELECT rate_limit_rule('money', methods => '{POST}', paths => '{/money}',
	limits => '{m=5 money/1d calendar}');
SELECT rate_limit_rule('zero', methods => '{POST}', paths => '{/zero}', limits => '{tpm=0 tokens/1h}');
SELECT rate_limit_rule('none', paths => '{/zero,/none}', per_hour => 0);
SELECT rate_limit_rule('try', methods => '{POST}', paths => '{/shadow}', limits => '{tpm=1000 tokens/1h}',
	mode => 'shadow');
SELECT rate_limit_rule('team', methods => '{POST}', paths => '{/team}', limits => '{tpm=1000 tokens/1h}',
	count_by => '{header:X-Team}', without_header => 'refuse');
SELECT rate_limit_rule('sockets', action => 'exempt', paths => '{/app/*}');
SELECT rate_limit_rule('lists', action => 'exempt', paths => '{/get/*}', methods => '{GET}');
SELECT rate_limit_rule('closed', action => 'block', paths => '{/mixed/*,/closed}', methods => '{POST}',
	tiers => '{pro}');
SELECT rate_limit_rule('shut', action => 'block', paths => '{/v1/shut}');
