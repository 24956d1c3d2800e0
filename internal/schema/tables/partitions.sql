-- Functions for the partitions of rate_limit_audit, rate_limit_metrics_minute and rate_limit_metrics_hour.
-- Each partition has one day in UTC, from midnight to midnight, for every TimeZone of the session.
--
-- A new partition is created as a table and then attached. Unlike CREATE TABLE ... PARTITION OF, this takes a
-- lock on the parent that does not block writers. The lock also prevents other processes from creating the
-- same partition. There is no DEFAULT partition, because DETACH ... CONCURRENTLY does not work on a table
-- with a DEFAULT partition, and attaching a new partition would first scan the DEFAULT partition.

-- Whether the calling role has the rights of the owner of the history.
--
-- Functions of the history run with the rights of the owner. The next function returns whether the caller may
-- create or delete what the owner may.
CREATE OR REPLACE FUNCTION rate_limit_owns_history() RETURNS boolean
	LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT pg_has_role(rate_limit_caller(), c.relowner, 'USAGE') FROM pg_class c
	WHERE c.oid = 'rate_limit_retention'::regclass
$$;

-- The partitions of a table of the history, with their schemas, starts and ends.
CREATE OR REPLACE FUNCTION rate_limit_partitions(parent text DEFAULT 'rate_limit_audit')
	RETURNS TABLE (id oid, name text, begins timestamptz, ends timestamptz)
	LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT p.id, p.name, CASE p.first WHEN 'MINVALUE' THEN '-infinity' ELSE p.first END::timestamptz,
		CASE p.last WHEN 'MAXVALUE' THEN 'infinity' ELSE p.last END::timestamptz
	FROM (SELECT c.oid AS id, format('%I.%I', n.nspname, c.relname) AS name,
			substring(pg_get_expr(c.relpartbound, c.oid) FROM 'FROM [(]''?([^'')]+)') AS first,
			substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO [(]''?([^'')]+)') AS last
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE i.inhparent = $1::regclass) AS p
	ORDER BY 3
$$;

-- Creates the partition of a table of the history for a day in UTC, and returns its name with the schema, or
-- NULL if it exists already. Writers do not wait. The name is rate_limit_audit_YYYYMMDD, followed by _2 if a
-- detached table has that name. For a role that does not own the tables, the day must be within 8 days of
-- today.
CREATE OR REPLACE FUNCTION rate_limit_make_partition(day date, parent text DEFAULT 'rate_limit_audit')
	RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	space CONSTANT text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = parent::regclass);
	name text;
	same record;
BEGIN
	IF day IS NULL OR day < date '0001-01-01' OR day > date '9999-12-31' THEN
		RAISE EXCEPTION 'day: %: must be a day from 0001-01-01 to 9999-12-31', coalesce(day::text, 'NULL')
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	FOR attempt IN 1..2 LOOP
		IF EXISTS (SELECT FROM rate_limit_partitions(parent) p WHERE p.begins <= day::timestamptz
			AND p.ends > day::timestamptz) THEN
			RETURN NULL;
		END IF;
		-- Another process may create the partition before this process has the lock, so look twice.
		EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', parent::regclass);
	END LOOP;
	-- A writer drops rows that fail with invalid_parameter_value, so that rows with a wrong time do not hold
	-- up later rows.
	IF abs(day - (now() AT TIME ZONE 'UTC')::date) > 8 AND NOT rate_limit_owns_history() THEN
		RAISE EXCEPTION 'day: %: must be within 8 days of today, because % does not own the tables', day,
			rate_limit_caller()
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	-- A table that was detached may have the name.
	FOR n IN 1..1000 LOOP
		name := concat(space, '.', parent, to_char(day, '_YYYYMMDD'), '_' || nullif(n, 1));
		EXIT WHEN to_regclass(name) IS NULL;
	END LOOP;
	EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL)', name, parent::regclass);
	PERFORM rate_limit_strip(ARRAY[name::regclass::oid]);
	FOR same IN SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE i.indrelid = name::regclass AND i.indisunique LOOP
		EXECUTE format('ALTER TABLE %s REPLICA IDENTITY USING INDEX %I', name, same.relname);
	END LOOP;
	IF NOT FOUND THEN -- a publication of deletes would otherwise refuse them
		EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', name);
	END IF;
	EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', parent::regclass,
		name, day::timestamptz, (day + 1)::timestamptz);
	RETURN name;
EXCEPTION WHEN duplicate_table OR invalid_object_definition THEN
	-- Under REPEATABLE READ, the snapshot does not show a partition that another process created.
	IF current_setting('transaction_isolation') = 'read committed' THEN
		RAISE;
	END IF;
	RETURN NULL;
END $$;
