-- rate_limit_known_zone names time zones. It sets TimeZone to a name, because AT TIME ZONE would read a name
-- in any spelling, and some names as abbreviations without summer time. The generator replaces links by
-- ratelimit.ZoneLinks.

-- The name of a time zone for columns time_zone: UTC, or the name of a place as the server spells it, also
-- for a link such as US/Eastern. NULL: the server does not know the zone, or it is no place.
CREATE OR REPLACE FUNCTION rate_limit_known_zone(zone text) RETURNS text LANGUAGE plpgsql IMMUTABLE
	SET TimeZone = 'UTC' AS $$
DECLARE
	links CONSTANT text := '{links}';
	target CONSTANT text := split_part(split_part(links, ' ' || zone || '=', 2), ' ', 1);
	name CONSTANT text := CASE target WHEN '' THEN zone ELSE target END;
BEGIN
	IF name ~ '^(UTC|Etc/GMT|(Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Europe|Indian'
		'|Pacific)/[A-Za-z_/-]+)$' THEN -- A name with a digit can be a zone of POSIX.
		PERFORM set_config('TimeZone', name, true);
		RETURN current_setting('TimeZone');
	END IF;
	RETURN NULL;
EXCEPTION WHEN invalid_parameter_value THEN
	RETURN NULL;
END $$;
