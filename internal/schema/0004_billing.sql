-- The sums of a limit have times in place of days.
DROP FUNCTION IF EXISTS rate_limit_ledger_sum(text, date, date, text, text);
