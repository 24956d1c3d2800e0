DO $$ DECLARE d date := now() AT TIME ZONE 'UTC'; BEGIN
	FOR i IN 0..49 LOOP
		IF to_regclass('rate_limit_ledger_' || to_char(d - i, 'YYYYMMDD')) IS NULL THEN
			EXECUTE format('CREATE TABLE rate_limit_ledger_%s PARTITION OF rate_limit_ledger
				(PRIMARY KEY (id)) FOR VALUES FROM (%L) TO (%L)', to_char(d - i, 'YYYYMMDD'), d - i,
				d - i + 1);
		END IF;
	END LOOP;
END $$;
INSERT INTO rate_limit_ledger (day, id, time, user_id, ancestors, model, input, output, money, charges)
	SELECT d, gen_random_uuid(), d::timestamp AT TIME ZONE 'UTC' + i % 86400 * interval '1 s',
		'u' || i % USERS, ARRAY['team' || i % 100, 'department' || i % 10, 'org'], 'm' || i % 3, i, i, i,
		jsonb_build_array(jsonb_build_object('prefix', 'rule/r/l', 'key', 'org', 'unit', 'money', 'units', i))
	FROM (SELECT (now() AT TIME ZONE 'UTC')::date - i % 50 AS d, i FROM generate_series(1, ROWS) i) r
