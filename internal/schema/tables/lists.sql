-- Helpers for constraints. A CHECK cannot contain a subquery, but can call a function. The bodies
-- are parsed when the functions are created, so they do not depend on the search_path.

-- Whether a list is non-empty and one-dimensional, and every element matches a regular expression. NULL: the
-- list is NULL.
CREATE OR REPLACE FUNCTION rate_limit_each_matches(list text[], pattern text) RETURNS boolean
	LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN array_ndims(list) = 1 AND (SELECT coalesce(bool_and(coalesce(item ~ pattern, false)), false)
	FROM unnest(list) AS item);

-- Whether all alternatives of all elements differ in more than case.
--
-- Names of headers that differ only in case are equal.
CREATE OR REPLACE FUNCTION rate_limit_each_once(list text[]) RETURNS boolean
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN NOT EXISTS (SELECT FROM unnest(list) AS item, unnest(string_to_array(item, '|')) AS name
	GROUP BY lower(name) HAVING count(*) > 1);
