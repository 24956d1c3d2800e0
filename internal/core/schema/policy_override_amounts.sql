-- Triggers reject an override with an amount that its limit cannot have. rate_limit_override_fault
-- applies the constraints of rate_limit_rule_limits to the limit with the amount of the override. A
-- CHECK sees only one row, so triggers on both tables call it. The triggers lock the row of the
-- limit: of two transactions that change a limit and its override, one waits and sees the other's
-- change.

CREATE OR REPLACE FUNCTION rate_limit_override_fault(algorithm text, per interval, own_burst bigint,
	events bigint, burst bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
	WHEN algorithm = 'sliding_log' AND events > 1000
		THEN 'override_of_sliding_log_must_have_at_most_1000_events'
	WHEN algorithm = 'in_flight' AND events > 1000 THEN 'override_of_in_flight_must_have_at_most_1000_events'
	WHEN algorithm NOT IN ('token_bucket', 'gcra') AND burst IS NOT NULL
		THEN 'override_with_burst_must_be_of_token_bucket_or_gcra'
	WHEN algorithm = 'gcra' AND greatest(coalesce(burst, own_burst, events), events)::numeric * (extract(epoch
		FROM per) * 1000000) > 4611686018427387904
		THEN 'override_of_gcra_must_have_burst_times_per_up_to_2_pow_62_us'
	WHEN algorithm = 'gcra' AND events > 0 AND coalesce(burst, own_burst, events)::numeric * extract(epoch
		FROM per) > events::numeric * 3155760000
		THEN 'override_of_gcra_must_drain_a_full_burst_within_36525_days'
	END;
COMMENT ON FUNCTION rate_limit_override_fault IS
	'What is wrong with the events and the burst of an override for a limit of that algorithm, time and '
	'burst. NULL: nothing.';

CREATE OR REPLACE FUNCTION rate_limit_check_overrides() RETURNS trigger
	LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	fault text;
	wrong bigint;
BEGIN
	IF TG_TABLE_NAME = 'rate_limit_overrides' THEN
		wrong := NEW.id;
		SELECT rate_limit_override_fault(l.algorithm, l.per, l.burst, NEW.events, NEW.burst) INTO fault
			FROM rate_limit_rule_limits l WHERE l.rule = NEW.rule AND l.name = NEW.limit_name FOR SHARE;
	ELSE
		SELECT o.id, f INTO wrong, fault
			FROM rate_limit_overrides o CROSS JOIN
				LATERAL rate_limit_override_fault(NEW.algorithm, NEW.per, NEW.burst, o.events, o.burst) AS f
			WHERE o.rule = NEW.rule AND o.limit_name = NEW.name AND f IS NOT NULL ORDER BY o.id LIMIT 1;
	END IF;
	IF fault IS NOT NULL THEN
		RAISE EXCEPTION 'the override % violates check constraint "%"', wrong, fault
			USING ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = 'rate_limit_overrides',
				CONSTRAINT = fault;
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_check_overrides IS
	'Refuses overrides that do not suit their limits, and changes of limits that do not suit '
	'their overrides.';
CREATE OR REPLACE TRIGGER rate_limit_suits AFTER INSERT OR UPDATE ON rate_limit_overrides FOR EACH ROW
	EXECUTE FUNCTION rate_limit_check_overrides();
CREATE OR REPLACE TRIGGER rate_limit_suits AFTER UPDATE OF algorithm, per, calendar,
	burst ON rate_limit_rule_limits FOR EACH ROW EXECUTE FUNCTION rate_limit_check_overrides();
