-- A server that is too old is refused. TestOldServer checks the text.

DO $$ BEGIN
	IF current_setting('server_version_num')::int < 150000 THEN
		RAISE EXCEPTION 'the policy tables of pg-ratelimit need PostgreSQL 15 or newer, and this server is %; the counters work without them',
			current_setting('server_version') USING ERRCODE = 'feature_not_supported';
	END IF;
	-- A region does not refuse what the migration does to its copy.
	PERFORM set_config('rate_limit.migrating', 'on', true);
END $$;
