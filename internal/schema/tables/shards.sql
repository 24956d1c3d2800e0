-- The shards of the counts, for migrate --citus. Each shard is a schema with the two tables of counts, which
-- Citus places on a server and moves. This file creates what all shards share.

-- Fails unless a placement of the counts is on this server, and keeps the placement here until the
-- transaction ends.
--
-- A proxy sends a statement to the server of a placement directly, without Citus. The guard takes the same
-- lock as a move of the placement, so the statement runs before or after the move. The statement fails if the
-- placement is not on this server, and if the lock is not free in time, because then a move is in progress.
-- The guard is volatile, so that it sees changes that were committed after its statement began.
CREATE OR REPLACE FUNCTION rate_limit_guard(placement bigint) RETURNS void LANGUAGE plpgsql VOLATILE
	SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
	BEGIN
		PERFORM lock_shard_metadata(5, ARRAY[$1]);
	EXCEPTION WHEN lock_not_available THEN
		RAISE SQLSTATE 'RL002' USING MESSAGE = format('placement %s is being moved', $1);
	END;
	IF NOT EXISTS (SELECT FROM pg_dist_placement p WHERE p.shardid = $1
		AND p.groupid = (SELECT l.groupid FROM pg_dist_local_group l)) THEN
		RAISE SQLSTATE 'RL001' USING MESSAGE = format('placement %s is not here', $1);
	END IF;
END $$;

-- Prevents programs without support for shards from counting outside the shards.
--
-- Programs without support for shards must not count in the tables outside the shards.
CREATE OR REPLACE FUNCTION rate_limit_refuse_count() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE object_not_in_prerequisite_state
		USING MESSAGE = 'the counts of this database are in shards: restart this program, or upgrade it';
END $$;
CREATE OR REPLACE TRIGGER rate_limit_refuse_count BEFORE INSERT ON rate_limit_ephemeral
	EXECUTE FUNCTION rate_limit_refuse_count();
CREATE OR REPLACE TRIGGER rate_limit_refuse_count BEFORE INSERT ON rate_limit_durable
	EXECUTE FUNCTION rate_limit_refuse_count();

CREATE OR REPLACE FUNCTION rate_limit_counters(prefix text, durable boolean, keys text[] DEFAULT NULL)
RETURNS TABLE (key text, count bigint, prev_count bigint, window_start timestamptz, tokens float8,
	last_refill timestamptz,
	remainder bigint, hits timestamptz[], slots bigint, held bigint,
	expires_at timestamptz) LANGUAGE plpgsql STABLE
		SET search_path FROM CURRENT AS $$
DECLARE
	shard record;
BEGIN
	FOR shard IN SELECT p.schema FROM rate_limit_shards() p LOOP
		RETURN QUERY EXECUTE format(replace($sql$SELECT c.key, c.count, c.prev_count, c.window_start,
				c.tokens, c.last_refill, c.remainder, c.hits, {live_slots}, {live_held}, c.expires_at
			FROM %1$I.%2$I c WHERE c.prefix = $1 AND ($2 IS NULL OR c.key = ANY ($2))$sql$,
			'{processes}', '%1$I.rate_limit_processes'), shard.schema, CASE WHEN durable
				THEN 'rate_limit_durable' ELSE 'rate_limit_ephemeral' END) USING prefix, keys;
	END LOOP;
END $$;
