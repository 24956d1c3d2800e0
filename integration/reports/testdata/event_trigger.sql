CREATE FUNCTION switch_on() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE c record; BEGIN FOR c IN SELECT * FROM pg_event_trigger_ddl_commands()
	WHERE schema_name = 'FAKE' AND command_tag = 'CREATE TABLE' LOOP
EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', c.object_identity); END LOOP; END $$;
CREATE EVENT TRIGGER "ID" ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION switch_on();
DO $$ BEGIN CREATE ROLE "ID"; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
