-- The number grows with every change of the history, so that proxies of different versions on one
-- database leave the newest schema as it is.
CREATE OR REPLACE FUNCTION rate_limit_history_version() RETURNS int
	LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 1';
COMMENT ON FUNCTION rate_limit_history_version IS
	'The version of the tables of the history. The last command of the migration creates it.';
