-- The name and the user of an API key, as in laptop of ann. Without key_id, it is the API key of a counter,
-- if the rule counts by API key. NULL: there is none, or the role may not read the policy.
CREATE OR REPLACE FUNCTION rate_limit_key_name(key_id bigint, rule text DEFAULT NULL, key text DEFAULT NULL)
	RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF NOT rate_limit_may_read('api_keys', 'rules') THEN
		RETURN NULL;
	END IF;
	IF $1 IS NULL THEN
		$1 := (SELECT d.part::bigint FROM rate_limit_rules r, rate_limit_counted(r.count_by, $3) AS d
			WHERE r.name = $2 AND d.dimension = 'key' AND d.part ~ '^[1-9][0-9]{0,17}$');
	END IF;
	RETURN (SELECT concat_ws(' ', k.name, 'of', k.user_id) FROM rate_limit_api_keys k WHERE k.id = $1);
END $$;
