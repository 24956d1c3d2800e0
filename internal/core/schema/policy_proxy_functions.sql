-- What the proxies write beside the counters. The functions have the rights of the owner of the
-- tables, so that the role of the proxies needs no right to write bans or to delete changes: it can
-- ban, and can neither lift nor shorten a ban; and it can forget old changes only.

CREATE OR REPLACE FUNCTION rate_limit_ban(duration interval, network cidr DEFAULT NULL, user_id text DEFAULT NULL, key_id bigint DEFAULT NULL,
	reason text DEFAULT NULL, banned_by text DEFAULT NULL) RETURNS timestamptz LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	longest CONSTANT interval := '8760 h';
	ends timestamptz;
	-- The name of a proxy stands behind its role, so that it cannot be taken for a person.
	author CONSTANT text := session_user || coalesce(' (' || left(rate_limit_ban.banned_by, 200) || ')', '');
BEGIN
	IF duration IS NULL OR duration <= interval '0' THEN
		RAISE EXCEPTION 'duration: %: must be above 0', duration USING ERRCODE = 'invalid_parameter_value';
	END IF;
	INSERT INTO rate_limit_bans AS b (network, user_id, key_id, until, reason, banned_by)
		SELECT rate_limit_ban.network, rate_limit_ban.user_id, rate_limit_ban.key_id, now() + rate_limit_ban.duration, rate_limit_ban.reason, author
		WHERE NOT EXISTS (SELECT FROM rate_limit_bans o WHERE o.network = rate_limit_ban.network OR o.user_id = rate_limit_ban.user_id OR o.key_id = rate_limit_ban.key_id)
	ON CONFLICT DO NOTHING RETURNING until INTO ends;
	IF ends IS NULL THEN
		UPDATE rate_limit_bans b SET times = b.times + 1, banned_at = now(), reason = rate_limit_ban.reason, banned_by = author,
			until = now() + greatest(rate_limit_ban.duration, least(longest, rate_limit_ban.duration * power(2, least(b.times, 30))))
		WHERE b.until <= now() AND (b.network = rate_limit_ban.network OR b.user_id = rate_limit_ban.user_id OR b.key_id = rate_limit_ban.key_id);
		SELECT b.until INTO ends FROM rate_limit_bans b
		WHERE b.network = rate_limit_ban.network OR b.user_id = rate_limit_ban.user_id OR b.key_id = rate_limit_ban.key_id;
	END IF;
	RETURN ends;
END $$;
COMMENT ON FUNCTION rate_limit_ban IS
	'Bans a network, a user or a key, and returns until when. Each ban after the first lasts twice as long as the one before, up to a year. A ban that is in force stays as it is.';

CREATE OR REPLACE FUNCTION rate_limit_forget() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	forgotten bigint;
BEGIN
	DELETE FROM rate_limit_bans b WHERE b.until < now() - interval '30 days';
	DELETE FROM rate_limit_changes WHERE seq IN (SELECT seq FROM rate_limit_changes WHERE at < now() - interval '30 days' ORDER BY at LIMIT 10000);
	GET DIAGNOSTICS forgotten = ROW_COUNT;
	RETURN forgotten;
END $$;
COMMENT ON FUNCTION rate_limit_forget() IS
	'Deletes what is older than 30 days: up to 10,000 changes, and bans that have ended. It returns how many changes it deleted.';
