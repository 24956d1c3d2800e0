package schema

// policyServer refuses a server that is too old. TestOldServer checks the text.
const policyServer = `
DO $$ BEGIN
	IF current_setting('server_version_num')::int < 150000 THEN
		RAISE EXCEPTION 'the policy tables of pg-ratelimit need PostgreSQL 15 or newer, and this server is %; the counters work without them',
			current_setting('server_version') USING ERRCODE = 'feature_not_supported';
	END IF;
END $$;
`

// policyLists is the function that checks the elements of lists, since a CHECK cannot have a
// subquery. The body is parsed once, so it depends on no search_path.
const policyLists = `
CREATE OR REPLACE FUNCTION rate_limit_each_matches(list text[], pattern text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN array_ndims(list) = 1 AND (SELECT coalesce(bool_and(coalesce(item ~ pattern, false)), false) FROM unnest(list) AS item);
COMMENT ON FUNCTION rate_limit_each_matches(text[], text) IS
	'Whether a list has elements, none of them a list, and each of them matches a regular expression. Constraints use it.';
`
