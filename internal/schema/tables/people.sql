-- Users: what parents do to levels.

-- Sets the level of a user, and of its parent.
--
-- For a table that was empty when it was analyzed, Postgres would plan to read all rows, for each new one.
CREATE OR REPLACE FUNCTION rate_limit_set_level() RETURNS trigger LANGUAGE plpgsql
	SET enable_seqscan = off AS $$
BEGIN
	SELECT u.level INTO NEW.parent_level FROM rate_limit_users u WHERE u.user_id = NEW.parent;
	IF NEW.parent_level IS NULL AND NEW.parent IS NOT NULL THEN
		RAISE foreign_key_violation USING MESSAGE = format('parent: %s: must be in rate_limit_users',
			to_json(NEW.parent));
	END IF;
	NEW.level := coalesce(NEW.parent_level, 0) + 1;
	RETURN NEW;
END $$;

-- A dump of rows alone, which sets the search_path to '', has the levels, and can have a user before its
-- parent. An application can set the search_path to '', too.
CREATE OR REPLACE TRIGGER rate_limit_set_level BEFORE INSERT ON rate_limit_users FOR EACH ROW
	WHEN (NEW.parent_level IS NULL OR current_setting('search_path') NOT IN ('', '""'))
	EXECUTE FUNCTION rate_limit_set_level();
CREATE OR REPLACE TRIGGER rate_limit_change_level BEFORE UPDATE OF parent, parent_level ON rate_limit_users
	FOR EACH ROW EXECUTE FUNCTION rate_limit_set_level();

-- Postgres inlines this body: see rate_limit_override_of.
DO $do$ BEGIN
	EXECUTE replace($sql$
-- A user, the users above it, and the names by which they count. place is 0 for the user itself.
CREATE OR REPLACE FUNCTION rate_limit_lineage(user_id text)
RETURNS TABLE (user_id text, counts text, place int) LANGUAGE sql STABLE ROWS 2 AS $$
	WITH RECURSIVE up AS (
		SELECT $1 AS user_id, coalesce(u.counted_as, $1) AS counts, u.parent, 0 AS place
		FROM (SELECT) AS s LEFT JOIN {schema}.rate_limit_users u ON u.user_id = $1
		UNION ALL SELECT p.user_id, coalesce(p.counted_as, p.user_id), p.parent, up.place + 1
		FROM up JOIN {schema}.rate_limit_users p ON p.user_id = up.parent WHERE up.place < 3
	) SELECT up.user_id, up.counts, up.place FROM up
$$;
$sql$, '{schema}', quote_ident(current_schema()));
END $do$;
