package schema

// File is the text of the file schema.sql at the root of the repository, for psql and other
// programs that run each command as a transaction of its own. The registry, the history and the
// policy are a transaction each, and wait for a proxy that makes the same tables. The policy is the last part,
// because it fails on a server that is too old for it, and psql may stop there.
const File = `-- The tables of pg-ratelimit. Run this file if proxies may not create tables: psql -f schema.sql
-- It creates the tables, or upgrades those of the npm library pg-ratelimit and of older versions, and keeps their
-- rows. It can run any number of times. A proxy runs the same SQL on first use, unless auto_migrate is off.
-- The first part has the two tables of counts and the registry of proxies, the second part the history, the third part
-- the policy. The policy needs PostgreSQL 15 or newer. On an older server the third part fails as a whole, and the others
-- work without it.
` + counterTables + `
BEGIN;` + waitForOthers + Nodes + `
COMMIT;

BEGIN;` + waitForOthers + History + `
COMMIT;

BEGIN;` + waitForOthers + Policy + `
COMMIT;
`

// waitForOthers takes the lock of Lock. A person who runs the file waits for locks of tables, so it
// sets no lock_timeout.
const waitForOthers = `
DO $$ BEGIN PERFORM pg_advisory_xact_lock(1885827692); END $$;
`
