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

-- rate_limit_rename_references gives a new name to what refers to a user or a tier without a foreign key: a
-- ban can be of a user that the table does not have, and the tiers of a rule are a list.

CREATE OR REPLACE FUNCTION rate_limit_rename_references() RETURNS trigger LANGUAGE plpgsql AS $$
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
COMMENT ON FUNCTION rate_limit_rename_references() IS 'Gives the bans of a user, and the rules for a tier, its new name.';
CREATE OR REPLACE TRIGGER rate_limit_rename_references AFTER UPDATE OF user_id ON rate_limit_users FOR EACH ROW WHEN (OLD.user_id <> NEW.user_id) EXECUTE FUNCTION rate_limit_rename_references();
CREATE OR REPLACE TRIGGER rate_limit_rename_references AFTER UPDATE OF tier ON rate_limit_tiers FOR EACH ROW WHEN (OLD.tier <> NEW.tier) EXECUTE FUNCTION rate_limit_rename_references();

CREATE OR REPLACE FUNCTION rate_limit_rename(kind text, name text, new_name text) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	CASE $1
	WHEN 'rule' THEN UPDATE rate_limit_rules r SET name = $3 WHERE r.name = $2;
	WHEN 'tier' THEN UPDATE rate_limit_tiers t SET tier = $3 WHERE t.tier = $2;
	WHEN 'user' THEN UPDATE rate_limit_users u SET user_id = $3 WHERE u.user_id = $2;
	ELSE RAISE EXCEPTION 'kind: %: must be rule, tier or user', to_json($1) USING ERRCODE = 'invalid_parameter_value';
	END CASE;
	RETURN FOUND;
EXCEPTION WHEN unique_violation THEN
	RAISE EXCEPTION '%: %: must be a name that no % has', $1, to_json($3), $1 USING ERRCODE = 'unique_violation';
END $$;
COMMENT ON FUNCTION rate_limit_rename(text, text, text) IS
	'Gives a rule, a tier or a user another name, which all that refers to it then has, and returns whether it was there. A rule keeps its counters; a user begins new ones.';
