-- The functions about the partitions of rate_limit_audit: one for each day in UTC, from midnight to
-- midnight, whatever the TimeZone of the session is.
--
-- A new partition is made as a table of its own and attached then. That takes a lock on
-- rate_limit_audit which writers do not wait for: CREATE TABLE … PARTITION OF would stop them. The
-- same lock keeps other processes from making the same partition. There is no DEFAULT partition,
-- because DETACH … CONCURRENTLY does not work with one.

CREATE OR REPLACE FUNCTION rate_limit_partitions() RETURNS TABLE (id oid, name text, begins timestamptz, ends timestamptz, pending boolean)
	LANGUAGE sql STABLE SET TimeZone = 'UTC' SET DateStyle = 'ISO' AS $$
	SELECT p.id, p.name, CASE p.first WHEN 'MINVALUE' THEN '-infinity' ELSE p.first END::timestamptz, CASE p.last WHEN 'MAXVALUE' THEN 'infinity' ELSE p.last END::timestamptz, p.pending
	FROM (SELECT c.oid AS id, format('%I.%I', n.nspname, c.relname) AS name, i.inhdetachpending AS pending,
			substring(pg_get_expr(c.relpartbound, c.oid) FROM 'FROM [(]''?([^'')]+)') AS first, substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO [(]''?([^'')]+)') AS last
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE i.inhparent = 'rate_limit_audit'::regclass) AS p
	ORDER BY 3
$$;
COMMENT ON FUNCTION rate_limit_partitions() IS
	'The partitions of rate_limit_audit: the oid, the name with the schema, the bounds, and whether the partition is pending detach, so that ALTER TABLE … DETACH PARTITION … FINALIZE is still to come.';

CREATE OR REPLACE FUNCTION rate_limit_make_partition(day date) RETURNS text LANGUAGE plpgsql SET TimeZone = 'UTC' AS $$
DECLARE
	space CONSTANT text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'rate_limit_audit'::regclass);
	name text;
	same record;
BEGIN
	IF day IS NULL OR day < date '0001-01-01' OR day > date '9999-12-31' THEN
		RAISE EXCEPTION 'day: %: must be a day from 0001-01-01 to 9999-12-31', coalesce(day::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
	END IF;
	FOR attempt IN 1..2 LOOP
		SELECT * INTO same FROM rate_limit_partitions() p WHERE p.begins <= day::timestamptz AND p.ends > day::timestamptz;
		IF same.pending THEN
			RAISE EXCEPTION 'the partition % is about to be detached: the day can have another one afterwards', same.name USING ERRCODE = 'object_in_use';
		ELSIF same.name IS NOT NULL THEN
			RETURN NULL;
		END IF;
		-- Another process may have made it before this one gets the lock.
		LOCK TABLE ONLY rate_limit_audit IN SHARE UPDATE EXCLUSIVE MODE;
	END LOOP;
	-- A table of the name that is not attached was detached by an archive or an interrupted upkeep.
	FOR n IN 1..1000 LOOP
		name := to_char(day, '"rate_limit_audit_"YYYYMMDD') || CASE n WHEN 1 THEN '' ELSE '_' || n END;
		EXIT WHEN to_regclass(space || '.' || name) IS NULL;
	END LOOP;
	EXECUTE format('CREATE TABLE %s.%s (LIKE rate_limit_audit INCLUDING ALL)', space, name);
	EXECUTE format('ALTER TABLE rate_limit_audit ATTACH PARTITION %s.%s FOR VALUES FROM (%L) TO (%L)', space, name, day::timestamptz, (day + 1)::timestamptz);
	RETURN space || '.' || name;
EXCEPTION WHEN duplicate_table OR invalid_object_definition THEN
	-- The snapshot of a transaction that is REPEATABLE READ does not show the other's partition.
	IF current_setting('transaction_isolation') = 'read committed' THEN
		RAISE;
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_make_partition(date) IS
	'Makes the partition of rate_limit_audit for a day in UTC, and returns its name with the schema; NULL: there is one already. Writers go on meanwhile. A partition is named rate_limit_audit_YYYYMMDD, or with _2 behind it if a table of that name is there that was detached.';
