package schema

import "github.com/pgratelimit/pg-ratelimit/internal/core/pg"

//go:generate go test . -run TestGeneratedFileIsCurrent -update

// Counters creates or upgrades the two tables of counts, including tables of the npm library pg-ratelimit,
// and then runs Nodes.
const Counters = allCounters + Nodes

const allCounters = refuseCounters + countersTables + refuseTypes + countersUsage + countersNotices +
	countersLedger + countersForget

// Nodes creates or upgrades the registry of the proxies.
const Nodes = refuseNodes + describe + grants + countersNodes + end

// History creates or upgrades the tables, functions and views of the history. History needs neither Counters
// nor Policy.
const History = refuseHistory + describe + grants + historyTables + historyPartitions +
	historyMetrics + historyRecord + historyUpkeep + keyName + historyAnswers + end + historyEnd

// Policy creates or upgrades the tables, triggers, functions and views of the policy. Policy needs Counters.
const Policy = refusePolicy + describe + grants + policyLists + policyPeople + policyPrices + policyRules +
	policyOverrides + knownZone + policyZones + policyChanges + policyOverrideAmounts + policyUsable +
	policyRenames + policyTriggers + policyFunctions + keyName + policyRuleFunction +
	policyProxyFunctions + policyViews + policyAnswers + policyCommands + policyDocument + end + policyEnd

// Lock begins a migration. It takes a lock with an arbitrary number, so that only one process migrates at a
// time. lock_timeout bounds the wait for a table in use, because decisions queue behind a migration that
// waits for the table. No other timeout ends a migration.
const Lock = pg.GuardSQL + `SELECT pg_advisory_xact_lock(1885827692);
SELECT set_config('lock_timeout', '200ms', true);`

// longerLockTimeout allows a longer wait for tables that decisions do not need.
const longerLockTimeout = `
SELECT set_config('lock_timeout', '500ms', true);`

// NodesOnce is Nodes for concurrent processes. NodesOnce fails if the tables of counts are missing, and
// during a restore.
const NodesOnce = Lock + `
DO $once$ BEGIN
	IF (SELECT r.counters = 0 OR r.restoring = 1
		FROM (` + Ready + `) AS r(counters, policy, restoring)) THEN
		RAISE EXCEPTION '` + restoring + `';
	END IF;
	EXECUTE $nodes$` + Nodes + `$nodes$;
END $once$;`

// HistoryOnce is History for concurrent processes. The first process with the lock runs History, and later
// processes find the tables up to date.
const HistoryOnce = Lock + longerLockTimeout + `
DO $once$ BEGIN
	IF NOT ` + historyReady + ` THEN
		EXECUTE $history$` + History + `$history$;
	END IF;
END $once$;`

// PolicyOnce is Nodes and then Policy, for concurrent processes. The first process with the lock runs Policy,
// and later processes find the tables up to date.
const PolicyOnce = Lock + Nodes + `
DO $once$ BEGIN
	IF NOT ` + policyReady + ` THEN
		EXECUTE $policy$` + Policy + `$policy$;
	END IF;
END $once$;`

// File is the text of schema.sql in a release, for psql and other programs that run each command in its own
// transaction. The registry, the history and the policy have a transaction each. A transaction waits while a
// proxy creates the same tables.
const File = `-- The tables of pg-ratelimit. Run this file if proxies may not create them: psql -f schema.sql
-- It creates the tables. It upgrades tables of the npm library pg-ratelimit and of older versions, and
-- keeps their rows. It can run any number of times. A proxy runs the same SQL on first use, unless
-- auto_migrate is off. The first part has the two tables of counts and the registry of proxies, the second
-- part the history, the third part the policy. The comments are in the .sql files of internal/schema. The
-- server must be PostgreSQL 15 or newer.
SET statement_timeout = 0;
` + allCounters + `
BEGIN;` + waitForMigrations + Nodes + `
COMMIT;

BEGIN;` + waitForMigrations + History + `
COMMIT;

BEGIN;` + waitForMigrations + Policy + `
COMMIT;
RESET statement_timeout;
`

// waitForMigrations takes the same lock as Lock, but sets no lock_timeout: an operator, unlike a proxy, can
// wait for a table in use.
const waitForMigrations = `
DO $$ BEGIN PERFORM set_config(name, '0', true) FROM pg_settings
	WHERE name = 'transaction_timeout'; PERFORM pg_advisory_xact_lock(1885827692); END $$;
`
