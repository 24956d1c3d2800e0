-- A region has a copy of the policy of a publisher, which comes by logical replication. The triggers that write
-- rate_limit_changes do not fire for replicated rows, so a region has others, which do. Their lines have the transaction numbers
-- of the server of the region, so that its proxies find them as any other change. A region makes bans of its own, with
-- ids below 0. All else is read-only there.

CREATE OR REPLACE FUNCTION rate_limit_log_replicated() RETURNS trigger LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	logged CONSTANT text := TG_ARGV[0];
	counter CONSTANT text := 'rate_limit.replicated_' || logged;
	most CONSTANT int := 1000;
	changed CONSTANT int := coalesce(nullif(current_setting(counter, true), ''), '0')::int + 1;
	actor CONSTANT text := session_user || ' (replication)';
	old_row CONSTANT jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
	new_row CONSTANT jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
	old_ref text;
	new_ref text;
BEGIN
	IF old_row - 'updated_at' = new_row - 'updated_at' THEN
		RETURN NULL;
	END IF;
	IF logged = 'key' AND TG_OP = 'DELETE' AND current_setting('rate_limit.migrating', true) IS DISTINCT FROM 'on' THEN
		DELETE FROM rate_limit_bans b WHERE b.key_id = (old_row->>'id')::bigint; -- no foreign key acts on replicated rows
	END IF;
	PERFORM set_config(counter, changed::text, true);
	IF changed > most THEN
		IF changed = most + 1 THEN
			INSERT INTO rate_limit_changes (kind, by) VALUES (logged, actor);
		END IF;
		RETURN NULL;
	END IF;
	IF old_row IS NOT NULL THEN
		old_ref := rate_limit_change_ref(logged, old_row);
	END IF;
	IF new_row IS NOT NULL THEN
		new_ref := rate_limit_change_ref(logged, new_row);
	END IF;
	IF TG_OP = 'UPDATE' AND old_ref IS DISTINCT FROM new_ref THEN
		INSERT INTO rate_limit_changes (kind, ref, by, before, after) VALUES (logged, old_ref, actor, old_row, NULL), (logged, new_ref, actor, NULL, new_row);
	ELSE
		INSERT INTO rate_limit_changes (kind, ref, by, before, after) VALUES (logged, coalesce(new_ref, old_ref), actor, old_row, new_row);
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_log_replicated() IS 'Writes rate_limit_changes in a region: one line for each of the first 1,000 rows of a kind that a transaction changes, and one for all others.';

CREATE OR REPLACE FUNCTION rate_limit_replace_ban() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_bans b WHERE (b.network = NEW.network OR b.user_id = NEW.user_id OR b.key_id = NEW.key_id OR b.id = NEW.id)
		AND (TG_OP = 'INSERT' OR b.id <> OLD.id);
	RETURN NEW;
END $$;
COMMENT ON FUNCTION rate_limit_replace_ban() IS 'Lets a ban of the publisher replace an equal one of the region, which would stop the replication.';

CREATE OR REPLACE FUNCTION rate_limit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('rate_limit.migrating', true) = 'on' THEN
		RETURN NULL;
	END IF;
	RAISE EXCEPTION 'this database is the region %, and its policy is a copy: change it at the publisher', to_json(rate_limit_region())
		USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'A region makes and lifts bans of its own only.';
END $$;
COMMENT ON FUNCTION rate_limit_refuse_change() IS 'Refuses to change the policy of a region.';

DO $$ BEGIN
	IF to_regprocedure('rate_limit_region()') IS NULL THEN
		CREATE FUNCTION rate_limit_region() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT NULL::text';
		COMMENT ON FUNCTION rate_limit_region() IS 'The name of the region whose policy is a copy. NULL: the policy is changed here.';
	END IF;
END $$;

CREATE OR REPLACE FUNCTION rate_limit_make_region(region text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	logged record;
BEGIN
	IF region !~ '^[a-z][a-z0-9_]{0,39}$' THEN
		RAISE EXCEPTION 'region: %: must be 1 to 40 lower-case letters, digits or underscores, the first a letter', to_json(region) USING ERRCODE = 'invalid_parameter_value';
	END IF;
	PERFORM set_config('rate_limit.migrating', 'on', true);
	SET CONSTRAINTS ALL IMMEDIATE; -- no table with a check that waits for the end of the transaction can be altered
	IF region IS NOT NULL AND rate_limit_region() IS NULL THEN
		UPDATE rate_limit_bans SET id = -id; -- the bans of this database are those of the region
		EXECUTE format('ALTER TABLE rate_limit_bans ALTER COLUMN id SET INCREMENT BY -1 SET MINVALUE -9223372036854775807 SET MAXVALUE -1 SET START WITH -1 RESTART WITH %s',
			(SELECT least(min(id), 0) - 1 FROM rate_limit_bans));
	END IF;
	EXECUTE format('CREATE OR REPLACE FUNCTION rate_limit_region() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS %L', format('SELECT %L::text', region));
	FOR logged IN SELECT * FROM (VALUES ('rate_limit_tiers', 'tier'), ('rate_limit_users', 'user'), ('rate_limit_api_keys', 'key'), ('rate_limit_rules', 'rule'),
		('rate_limit_rule_limits', 'limit'), ('rate_limit_overrides', 'override'), ('rate_limit_bans', 'ban')) AS t(name, kind)
	LOOP
		EXECUTE format('ALTER TABLE %1$I %2$s TRIGGER rate_limit_log_truncate', logged.name, CASE WHEN region IS NULL THEN 'ENABLE' ELSE 'ENABLE ALWAYS' END);
		IF region IS NULL THEN
			EXECUTE format('DROP TRIGGER IF EXISTS rate_limit_log_replicated ON %1$I; DROP TRIGGER IF EXISTS rate_limit_replace_ban ON %1$I;
				DROP TRIGGER IF EXISTS rate_limit_refuse_change ON %1$I; DROP TRIGGER IF EXISTS rate_limit_refuse_insert ON %1$I; DROP TRIGGER IF EXISTS rate_limit_refuse_truncate ON %1$I', logged.name);
			CONTINUE;
		END IF;
		EXECUTE format('CREATE OR REPLACE TRIGGER rate_limit_log_replicated AFTER INSERT OR UPDATE OR DELETE ON %1$I FOR EACH ROW EXECUTE FUNCTION rate_limit_log_replicated(%2$L);
			ALTER TABLE %1$I ENABLE REPLICA TRIGGER rate_limit_log_replicated;
			CREATE OR REPLACE TRIGGER rate_limit_refuse_change AFTER UPDATE OR DELETE ON %1$I FOR EACH ROW %3$s EXECUTE FUNCTION rate_limit_refuse_change();
			CREATE OR REPLACE TRIGGER rate_limit_refuse_insert AFTER INSERT ON %1$I FOR EACH ROW %4$s EXECUTE FUNCTION rate_limit_refuse_change();
			CREATE OR REPLACE TRIGGER rate_limit_refuse_truncate AFTER TRUNCATE ON %1$I FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_refuse_change()', logged.name, logged.kind,
			-- Proxies may renew a ban that is over, and delete old ones.
			CASE logged.kind WHEN 'ban' THEN 'WHEN (OLD.id > 0 AND OLD.until > now())' ELSE '' END, CASE logged.kind WHEN 'ban' THEN 'WHEN (NEW.id > 0)' ELSE '' END);
	END LOOP;
	IF region IS NOT NULL THEN
		CREATE OR REPLACE TRIGGER rate_limit_replace_ban BEFORE INSERT OR UPDATE ON rate_limit_bans FOR EACH ROW EXECUTE FUNCTION rate_limit_replace_ban();
		ALTER TABLE rate_limit_bans ENABLE REPLICA TRIGGER rate_limit_replace_ban;
		RETURN;
	END IF;
	FOR logged IN SELECT * FROM (VALUES ('rate_limit_api_keys'), ('rate_limit_overrides'), ('rate_limit_bans')) AS t(name) LOOP
		EXECUTE format('ALTER TABLE %1$I ALTER COLUMN id SET INCREMENT BY 1 SET MINVALUE 1 SET MAXVALUE 9223372036854775807 SET START WITH 1 RESTART WITH 1;
			SELECT setval(pg_get_serial_sequence(%2$L, ''id''), greatest(max(id), 0) + 1, false) FROM %1$I', logged.name, logged.name);
	END LOOP;
	UPDATE rate_limit_bans SET id = DEFAULT WHERE id < 0;
END $$;
COMMENT ON FUNCTION rate_limit_make_region(text) IS 'Makes this database a region, whose policy is a copy of that of a publisher. NULL: it is none any more, and its policy can be changed.';

CREATE OR REPLACE VIEW rate_limit_replication WITH (security_invoker = true) AS
	SELECT 'region' AS role, rate_limit_region() AS region, coalesce(s.subname, '')::text AS subscription, CASE WHEN s.oid IS NULL THEN 'none' WHEN NOT s.subenabled THEN 'disabled'
			WHEN EXISTS (SELECT FROM pg_subscription_rel c WHERE c.srsubid = s.oid AND c.srsubstate NOT IN ('s', 'r')) THEN 'copying' WHEN w.works THEN 'streaming' ELSE 'stopped' END AS state,
		coalesce(extract(epoch FROM clock_timestamp() - w.received), 0)::float8 AS silent_seconds, coalesce(e.apply_error_count + e.sync_error_count, 0)::bigint AS errors, NULL::bigint AS retained_bytes
	FROM (SELECT WHERE rate_limit_region() IS NOT NULL) r
	LEFT JOIN pg_subscription s ON s.subdbid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AND 'rate_limit_policy' = ANY (s.subpublications)
	LEFT JOIN LATERAL (SELECT bool_or(a.pid IS NOT NULL) AS works, max(a.last_msg_receipt_time) AS received FROM pg_stat_subscription a WHERE a.subid = s.oid AND a.relid IS NULL) w ON true
	LEFT JOIN pg_stat_subscription_stats e ON e.subid = s.oid
	UNION ALL
	SELECT 'publisher', NULL, s.slot_name::text, CASE WHEN s.active THEN 'streaming' ELSE 'stopped' END, extract(epoch FROM clock_timestamp() - a.reply_time)::float8, NULL,
		CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint END
	FROM pg_replication_slots s LEFT JOIN pg_stat_replication a ON a.pid = s.active_pid
	WHERE s.slot_type = 'logical' AND s.database = current_database() AND s.slot_name ~ '^rate_limit_policy_[a-z0-9_]+$' AND NOT s.temporary;
COMMENT ON VIEW rate_limit_replication IS 'How the policy comes to this database, if it is a region, and to each region to which this database publishes it. No row: neither.';
COMMENT ON COLUMN rate_limit_replication.role IS 'region or publisher.';
COMMENT ON COLUMN rate_limit_replication.region IS 'The name of the region that this database is. NULL: of a publisher.';
COMMENT ON COLUMN rate_limit_replication.subscription IS 'Its name, which is also that of the slot of the publisher. Empty: a region without one.';
COMMENT ON COLUMN rate_limit_replication.state IS 'streaming, copying, stopped, disabled or none.';
COMMENT ON COLUMN rate_limit_replication.silent_seconds IS 'For how long the other side has been silent; an idle one speaks every 30 seconds. NULL: the role may not see it.';
COMMENT ON COLUMN rate_limit_replication.errors IS 'How many times the region could not apply a change.';
COMMENT ON COLUMN rate_limit_replication.retained_bytes IS 'How much of its write-ahead log the publisher keeps for the region.';
GRANT SELECT ON rate_limit_replication TO PUBLIC; -- it shows what the catalog shows to every role
