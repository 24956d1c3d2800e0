package schema

import "github.com/pgratelimit/pg-ratelimit/internal/core/session"

//go:generate go test . -run TestTheGoFileIsCurrent -update

// Counters creates the two tables of counts, or brings those of the npm library pg-ratelimit
// up to date in place and keeps their rows, and adds Nodes. It can run any number of times.
const Counters = counterTables + Nodes

const counterTables = refuseCounters + counters + usage + forget

// Nodes are the registry of the proxies. It is a part of Counters.
const Nodes = refuseNodes + nodes

// History creates the tables, functions and the view of the history, or brings older ones up to
// date in place and keeps their rows. It can run any number of times, and needs neither Counters nor
// Policy.
const History = refuseHistory + historyTables + historyPartitions + historyRollup + historyRecord + historyUpkeep + historyAnswers + historyEnd

// Policy creates the tables, triggers, functions and views of the policy, or brings older ones
// up to date in place and keeps their rows. It needs Counters. It can run any number of times.
const Policy = refusePolicy + policyLists + policyPeople + policyRules + policyOverrides + policyChanges +
	policyOverrideAmounts + policyUsable + policyRenames + policyTriggers + policyFunctions + policyRuleFunction + policyProxyFunctions + policyViews + policyAnswers + policyCommands + policyDocument + policyEnd

// Lock makes one process at a time run the rest of a migration. The number of the lock is
// arbitrary. A lock on a table that is in use is not waited for longer than lock_timeout,
// because all other users of the table wait behind it, and so do decisions. No other timeout ends a migration.
const Lock = session.SQL + `SELECT pg_advisory_xact_lock(1885827692);
SELECT set_config('lock_timeout', '200ms', true);`

// longerWait is for tables that no decision needs, and whose writers may take longer.
const longerWait = `
SELECT set_config('lock_timeout', '500ms', true);`

// NodesOnce is Nodes for several processes at once.
const NodesOnce = Lock + Nodes

// HistoryOnce is History for several processes at once: all but the first find that there is
// nothing to do when they have the lock.
const HistoryOnce = Lock + longerWait + `
DO $once$ BEGIN
	IF NOT ` + historyReady + ` THEN
		EXECUTE $history$` + History + `$history$;
	END IF;
END $once$;`

// PolicyOnce is Policy for several processes at once, as HistoryOnce is.
const PolicyOnce = Lock + Nodes + `
DO $once$ BEGIN
	IF NOT ` + policyReady + ` THEN
		EXECUTE $policy$` + Policy + `$policy$;
	END IF;
END $once$;`

// File is the text of the file schema.sql of a release, for psql and other
// programs that run each command as a transaction of its own. The registry, the history and the
// policy are a transaction each, and wait for a proxy that makes the same tables.
const File = `-- The tables of pg-ratelimit. Run this file if proxies may not create tables: psql -f schema.sql
-- It creates the tables, or upgrades those of the npm library pg-ratelimit and of older versions, and keeps their
-- rows. It can run any number of times. A proxy runs the same SQL on first use, unless auto_migrate is off.
-- The first part has the two tables of counts and the registry of proxies, the second part the history, the third part
-- the policy. Its comments are in internal/core/schema/*.sql. All need PostgreSQL 15 or newer.
SET statement_timeout = 0;
` + counterTables + `
BEGIN;` + waitForOthers + Nodes + `
COMMIT;

BEGIN;` + waitForOthers + History + `
COMMIT;

BEGIN;` + waitForOthers + Policy + `
COMMIT;
RESET statement_timeout;
`

// waitForOthers takes the lock of Lock. A person who runs the file waits for locks of tables, so it
// sets no lock_timeout.
const waitForOthers = `
DO $$ BEGIN PERFORM set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'; PERFORM pg_advisory_xact_lock(1885827692); END $$;
`
