-- Removes from the tables of the npm library pg-ratelimit the columns that the proxies added, so that the
-- tables are again as the library creates them. Run it when no proxy uses them.
BEGIN;
SET LOCAL lock_timeout = '2s';
ALTER TABLE rate_limit_ephemeral
	DROP COLUMN IF EXISTS hits, DROP COLUMN IF EXISTS remainder, DROP COLUMN IF EXISTS slot,
	DROP COLUMN IF EXISTS granted, DROP COLUMN IF EXISTS slots, DROP COLUMN IF EXISTS held,
	RESET (fillfactor);
ALTER TABLE rate_limit_durable
	DROP COLUMN IF EXISTS hits, DROP COLUMN IF EXISTS remainder, DROP COLUMN IF EXISTS slot,
	DROP COLUMN IF EXISTS granted, DROP COLUMN IF EXISTS slots, DROP COLUMN IF EXISTS held,
	RESET (fillfactor);
DROP TABLE IF EXISTS rate_limit_processes, rate_limit_ledger, rate_limit_ledger_retention;
COMMIT;
DELETE FROM rate_limit_ephemeral WHERE expires_at < now();
DELETE FROM rate_limit_durable WHERE expires_at < now();
