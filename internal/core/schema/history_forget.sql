-- Only the owner of the tables can forget: the function has the rights of the role that runs it.

CREATE OR REPLACE FUNCTION rate_limit_forget_history(users text[], keys bigint[], networks inet[], texts text[], of_user boolean, dry_run boolean DEFAULT false)
RETURNS TABLE (name text, deleted bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	condition text;
BEGIN
	-- A statement on the log does not reach partitions that are detached, and still there.
	FOR name IN SELECT 'rate_limit_audit' UNION ALL
		(SELECT format('%I.%I', c.relnamespace::regnamespace, c.relname) FROM pg_class c
			JOIN pg_class a ON a.oid = 'rate_limit_audit'::regclass AND a.relnamespace = c.relnamespace AND a.relowner = c.relowner
			LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
		WHERE c.relkind = 'r' AND c.relname ~ '^rate_limit_audit_[0-9]{8}(_[0-9]+)?$' AND (i.inhrelid IS NULL OR i.inhdetachpending) ORDER BY c.relname)
		UNION ALL SELECT 'rate_limit_usage' UNION ALL SELECT 'rate_limit_usage_hours'
	LOOP
		condition := 'user_id = ANY ($1) OR key_id = ANY ($2)';
		IF name ~ 'rate_limit_audit' THEN
			-- A row of a known user is not of another one whose name is somewhere in the key of its counter.
			condition := condition || ' OR address <<= ANY ($3) OR (user_id IS NULL OR NOT $5) AND (key = ANY ($4) OR string_to_array(key, '' '') && $4 OR also && $4)';
		END IF;
		IF dry_run THEN
			EXECUTE format('SELECT count(*) FROM %s WHERE %s', name, condition) INTO deleted USING $1, $2, $3, $4, $5;
		ELSE
			EXECUTE format('DELETE FROM %s WHERE %s', name, condition) USING $1, $2, $3, $4, $5;
			GET DIAGNOSTICS deleted = ROW_COUNT;
		END IF;
		RETURN NEXT;
	END LOOP;
END $$;
COMMENT ON FUNCTION rate_limit_forget_history IS
	'Deletes the rows of users, of API keys by their ids, and of networks from the history, and returns how many of each table. texts are keys of counters. of_user: they are of a user, and a row of another one stays. A dry run only counts.';
