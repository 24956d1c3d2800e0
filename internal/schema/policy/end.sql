-- The number grows with every change of the policy's schema, so that an older proxy leaves the tables of a
-- newer proxy as they are.
CREATE OR REPLACE FUNCTION rate_limit_policy_version() RETURNS int
	LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 10';
COMMENT ON FUNCTION rate_limit_policy_version IS
	'The version of the tables of the policy. The last command of the migration creates it.';
