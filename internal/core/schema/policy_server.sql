-- A region does not refuse what the migration does to its copy.

DO $$ BEGIN
	PERFORM set_config('rate_limit.migrating', 'on', true);
END $$;
