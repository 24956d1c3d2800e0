-- A notice of money names its currency.
ALTER TABLE rate_limit_notices ADD COLUMN currency text;
