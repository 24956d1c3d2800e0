-- The function that checks the elements of lists, since a CHECK cannot have a subquery. The body is
-- parsed once, so it depends on no search_path.

CREATE OR REPLACE FUNCTION rate_limit_each_matches(list text[], pattern text) RETURNS boolean
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN array_ndims(list) = 1 AND (SELECT coalesce(bool_and(coalesce(item ~ pattern, false)), false)
	FROM unnest(list) AS item);
COMMENT ON FUNCTION rate_limit_each_matches(text[], text) IS
	'Whether a list has elements, none of them a list, and each of them matches a regular expression. '
	'Constraints use it.';
