-- rate_limit_name_counter gives a new rule a counter that no other rule has, so that it does not share
-- the counters of a rule that was renamed and had its name before.

CREATE OR REPLACE FUNCTION rate_limit_name_counter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.counter := NEW.name;
	FOR n IN 2..1000 LOOP
		EXIT WHEN NOT EXISTS (SELECT FROM rate_limit_rules r WHERE r.counter = NEW.counter);
		NEW.counter := left(NEW.name, 95) || '-' || n;
	END LOOP;
	RETURN NEW;
END $$;
COMMENT ON FUNCTION rate_limit_name_counter() IS 'Sets rate_limit_rules.counter to the name, or to the name with a number if another rule has that counter.';
CREATE OR REPLACE TRIGGER rate_limit_name_counter BEFORE INSERT OR UPDATE ON rate_limit_rules FOR EACH ROW WHEN (NEW.counter IS NULL) EXECUTE FUNCTION rate_limit_name_counter();

-- rate_limit_rename gives a new name to what refers to a user or a tier without a foreign key: a
-- ban can be of a user that the table does not have, and the tiers of a rule are a list.

CREATE OR REPLACE FUNCTION rate_limit_rename() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_TABLE_NAME = 'rate_limit_users' THEN
		-- Of two bans the one that ends later stays.
		DELETE FROM rate_limit_bans b USING rate_limit_bans o
			WHERE b.user_id IN (OLD.user_id, NEW.user_id) AND o.user_id IN (OLD.user_id, NEW.user_id) AND (b.until, b.id) < (o.until, o.id);
		UPDATE rate_limit_bans SET user_id = NEW.user_id WHERE user_id = OLD.user_id;
	ELSIF OLD.tier = 'anonymous' THEN
		RAISE EXCEPTION 'tier: ''anonymous'': must keep its name: it is the tier of requests without a user'
			USING ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, COLUMN = 'tier';
	ELSE
		UPDATE rate_limit_rules SET tiers = array_replace(tiers, OLD.tier, NEW.tier) WHERE OLD.tier = ANY (tiers);
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_rename() IS 'Gives the bans of a user, and the rules for a tier, its new name.';
CREATE OR REPLACE TRIGGER rate_limit_rename AFTER UPDATE OF user_id ON rate_limit_users FOR EACH ROW WHEN (OLD.user_id <> NEW.user_id) EXECUTE FUNCTION rate_limit_rename();
CREATE OR REPLACE TRIGGER rate_limit_rename AFTER UPDATE OF tier ON rate_limit_tiers FOR EACH ROW WHEN (OLD.tier <> NEW.tier) EXECUTE FUNCTION rate_limit_rename();
