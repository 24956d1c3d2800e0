SELECT rate_limit_rule('NAME-free', tiers => '{free}', paths => '{PATH*}',
	algorithm => 'token_bucket', per_day => 9, burst => 9);
SELECT rate_limit_rule('NAME-pro', tiers => '{pro}', paths => '{PATH*}', algorithm => 'fixed_window',
	per_day => 2, status => 402, message => 'Pay', retry_after => '90 s');
SELECT rate_limit_rule('NAME-bill', tiers => '{free}', paths => '{PATHa/*}',
	algorithm => 'fixed_window', per_day => 2, on_exceed => 'overage');
SELECT rate_limit_rule('NAME-trial', mode => 'shadow', paths => '{PATH*}',
	algorithm => 'fixed_window', per_day => 1);
SELECT rate_limit_rule('NAME-closed', action => 'block', paths => '{PATHb/*}',
	message => 'No "entry"');
SELECT rate_limit_rule('NAME-health', action => 'exempt', paths => '{PATHa/2}');
