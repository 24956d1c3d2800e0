-- Time zones. The function rate_limit_known_zone is the counterpart of ratelimit.ParseZone. A zone is checked
-- when its row is written, and not by a constraint, which would refuse a dump on a server that lacks the
-- zone. A dump has triggers after all rows, or of rows alone, sets the search_path to ''.

-- Replaces the links of time zones, and refuses zones that the server does not know.
CREATE OR REPLACE FUNCTION rate_limit_check_zone() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	known CONSTANT text := rate_limit_known_zone(NEW.time_zone);
BEGIN
	IF TG_OP = 'UPDATE' AND NEW.time_zone = OLD.time_zone THEN
		RETURN NEW; -- It may be from a dump.
	ELSIF known IS NULL THEN
		RAISE invalid_parameter_value USING MESSAGE = format('time_zone: %s: must be UTC or a place of the '
			'IANA time zones, such as Europe/Berlin, that the server knows', to_json(NEW.time_zone));
	END IF;
	NEW.time_zone := known;
	RETURN NEW;
END $$;

DO $$
DECLARE
	zoned text;
BEGIN
	FOREACH zoned IN ARRAY '{rate_limit_users,rate_limit_rule_limits}'::text[] LOOP
		EXECUTE format('CREATE OR REPLACE TRIGGER rate_limit_check_zone BEFORE INSERT OR UPDATE OF time_zone '
			'ON %I FOR EACH ROW WHEN (NEW.time_zone <> ''UTC'' AND current_setting(''search_path'') '
			'NOT IN (%L, %L)) EXECUTE FUNCTION rate_limit_check_zone()', zoned, '', '""');
	END LOOP;
END $$;
