-- Deletes old changes and bans on behalf of proxies. The function has the rights of the owner of the tables,
-- so that the role of the proxies needs no right to delete.

-- Deletes bans that ended more than 30 days ago, and up to 10,000 changes that are older than 30 days.
-- Returns the number of deleted changes.
CREATE OR REPLACE FUNCTION rate_limit_forget() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$
	DELETE FROM rate_limit_bans b WHERE b.until < now() - interval '30 days';
	WITH forgotten AS (DELETE FROM rate_limit_changes WHERE seq IN (SELECT seq FROM rate_limit_changes
		WHERE at < now() - interval '30 days' ORDER BY at LIMIT 10000) RETURNING seq)
	SELECT count(*) FROM forgotten
$$;
