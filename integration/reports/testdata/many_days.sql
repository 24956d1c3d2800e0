INSERT INTO rate_limit_users (user_id, tier, parent) VALUES ('orbit', 'free', NULL),
	('dept', 'free', 'orbit'), ('team', 'free', 'dept'), ('eve', 'free', 'team');
DO $$ DECLARE d date; BEGIN FOR d IN SELECT (now() AT TIME ZONE 'UTC')::date - i
	FROM generate_series(3, 30) i LOOP
EXECUTE format('CREATE TABLE IF NOT EXISTS rate_limit_ledger_%s PARTITION OF rate_limit_ledger
	FOR VALUES FROM (%L) TO (%L)', to_char(d, 'YYYYMMDD'), d, d + 1);
INSERT INTO rate_limit_ledger (day, id, time, user_id, ancestors, model, input, output, money, charges)
SELECT d, gen_random_uuid(), d::timestamp AT TIME ZONE 'UTC' + n * interval '1 s', 'eve',
	'{team,dept,orbit}', 'm' || n % 3, 10, 1, 11, '[{"prefix": "rule/budget/month", "key": "orbit",
	"unit": "money", "units": 11}]' FROM generate_series(1, 7500) n;
END LOOP; END $$
