-- The function that checks the elements of lists, since a CHECK cannot have a subquery. The body is
-- parsed once, so it depends on no search_path.

CREATE OR REPLACE FUNCTION rate_limit_each_matches(list text[], pattern text) RETURNS boolean
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN array_ndims(list) = 1 AND (SELECT coalesce(bool_and(coalesce(item ~ pattern, false)), false)
	FROM unnest(list) AS item);
COMMENT ON FUNCTION rate_limit_each_matches IS
	'Whether a list has elements, none of them a list, and each of them matches a regular expression. '
	'Constraints use it.';

-- Days are hours, as in the tables: the length of a day varies. What has months is no time of a limit, and
-- stays what it is.
CREATE OR REPLACE FUNCTION rate_limit_span(span interval) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN extract(year FROM span) <> 0 OR extract(month FROM span) <> 0
		THEN (extract(year FROM span) * 12 + extract(month FROM span))::text || ' months'
	WHEN extract(epoch FROM span) % 3600 = 0 THEN trunc(extract(epoch FROM span) / 3600)::text || 'h'
	WHEN extract(epoch FROM span) % 60 = 0 THEN trunc(extract(epoch FROM span) / 60)::text || 'm'
	WHEN extract(epoch FROM span) % 1 = 0 THEN trunc(extract(epoch FROM span))::text || 's'
	WHEN extract(epoch FROM span) % 0.001 = 0 THEN trunc(extract(epoch FROM span) * 1000)::text || 'ms'
	ELSE trunc(extract(epoch FROM span) * 1000000)::text || 'us' END;
COMMENT ON FUNCTION rate_limit_span IS
	'A time in the largest unit of which it is a multiple, as in 90s or 24h.';
