-- Renames a user or a tier in rows that refer to it without a foreign key: a ban may name a user without a
-- row, and the tiers of a rule are a list. A renamed rule or user counts by its first name.

-- Updates the bans of a renamed user, and the rules for a renamed tier.
CREATE OR REPLACE FUNCTION rate_limit_rename_references() RETURNS trigger
	LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	IF TG_TABLE_NAME = 'rate_limit_users' THEN
		-- If both names are banned, keep the ban that ends later.
		DELETE FROM rate_limit_bans b USING rate_limit_bans o
			WHERE b.user_id IN (OLD.user_id, NEW.user_id) AND o.user_id IN (OLD.user_id, NEW.user_id)
				AND (b.until, b.id) < (o.until, o.id);
		UPDATE rate_limit_bans SET user_id = NEW.user_id WHERE user_id = OLD.user_id;
	ELSIF OLD.tier = 'anonymous' THEN
		RAISE EXCEPTION 'tier: ''anonymous'': must keep its name: it is the tier of requests without a user'
			USING ERRCODE = 'check_violation';
	ELSE
		UPDATE rate_limit_rules SET tiers = array_replace(tiers, OLD.tier, NEW.tier)
			WHERE OLD.tier = ANY (tiers);
	END IF;
	RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER rate_limit_rename_references
	AFTER UPDATE OF user_id ON rate_limit_users FOR EACH ROW WHEN (OLD.user_id <> NEW.user_id)
	EXECUTE FUNCTION rate_limit_rename_references();
CREATE OR REPLACE TRIGGER rate_limit_rename_references AFTER UPDATE OF tier ON rate_limit_tiers FOR EACH ROW
	WHEN (OLD.tier <> NEW.tier) EXECUTE FUNCTION rate_limit_rename_references();

-- Keeps the name by which a renamed rule or user counts, and gives a new one a name by which no other one
-- counts.
CREATE OR REPLACE FUNCTION rate_limit_count_as() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
	SET enable_seqscan = off AS $$
DECLARE
	name CONSTANT text := to_jsonb(NEW) ->> TG_ARGV[0];
	old_name text := name;
	n int := 1;
	taken boolean := true;
BEGIN
	IF TG_OP = 'UPDATE' THEN
		old_name := to_jsonb(OLD) ->> TG_ARGV[0];
	END IF;
	IF old_name <> name AND NEW.counted_as IS NOT DISTINCT FROM OLD.counted_as THEN
		NEW.counted_as := coalesce(OLD.counted_as, old_name);
	ELSIF NEW.counted_as IS NULL THEN
		LOOP
			EXECUTE format('SELECT EXISTS (SELECT FROM %1$s r WHERE r.%2$I <> $1
				AND coalesce(r.counted_as, r.%2$I) = $2)', TG_RELID::regclass, TG_ARGV[0])
				INTO taken USING old_name, coalesce(NEW.counted_as, name);
			EXIT WHEN NOT taken;
			n := n + 1;
			NEW.counted_as := name || '-' || n;
		END LOOP;
	END IF;
	NEW.counted_as := nullif(NEW.counted_as, name);
	RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER rate_limit_count_as BEFORE INSERT OR UPDATE OF name, counted_as ON rate_limit_rules
	FOR EACH ROW EXECUTE FUNCTION rate_limit_count_as('name');
CREATE OR REPLACE TRIGGER rate_limit_count_as BEFORE INSERT OR UPDATE OF user_id, counted_as
	ON rate_limit_users FOR EACH ROW EXECUTE FUNCTION rate_limit_count_as('user_id');
