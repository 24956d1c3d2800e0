-- The number grows with every change of the history's schema, so that an older proxy leaves the tables of a
-- newer proxy as they are.
CREATE OR REPLACE FUNCTION rate_limit_history_version() RETURNS int
	LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 3';
COMMENT ON FUNCTION rate_limit_history_version IS
	'The version of the tables of the history. The last command of the migration creates it.';
