-- Helpers for constraints and views. A CHECK cannot contain a subquery, but can call a function. The bodies
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

-- An interval as a multiple of the largest unit that divides it, such as 90s or 24h.
--
-- Days are written as hours, as in the tables, because days vary in length. Months stay months, which no
-- valid window has.
CREATE OR REPLACE FUNCTION rate_limit_span(span interval) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN date_trunc('month', span) <> '0'
		THEN extract(year FROM span) * 12 + extract(month FROM span) || ' months'
	ELSE (SELECT trunc(extract(epoch FROM span) / u.seconds) || u.name
		FROM (VALUES (3600, 'h'), (60, 'm'), (1, 's'), (0.001, 'ms'), (0.000001, 'us')) AS u(seconds, name)
		WHERE extract(epoch FROM span) % u.seconds = 0 ORDER BY u.seconds DESC LIMIT 1) END;
