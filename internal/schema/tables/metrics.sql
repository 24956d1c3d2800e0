-- Functions for sums of rate_limit_metrics.

-- The sum of two numbers, at most the largest bigint, so that no number from a proxy makes a sum fail. NULL
-- in a counts as 0.
CREATE OR REPLACE FUNCTION rate_limit_add(a numeric, b bigint) RETURNS bigint
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN least(coalesce(a, 0) + b, 9223372036854775807);

-- The sum of two arrays, element by element. Missing elements count as 0.
--
-- The loop takes half the time of an array_agg over unnest. The body repeats the body of rate_limit_add,
-- because a call of rate_limit_add would depend on the search_path.
CREATE OR REPLACE FUNCTION rate_limit_add_buckets(a bigint[], b bigint[]) RETURNS bigint[]
	LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	FOR i IN 1..coalesce(array_length(b, 1), 0) LOOP
		CONTINUE WHEN b[i] = 0 AND a[i] IS NOT NULL; -- most elements of a second are 0
		a[i] := least(coalesce(a[i], 0)::numeric + coalesce(b[i], 0), 9223372036854775807);
	END LOOP;
	RETURN a;
END $$;
