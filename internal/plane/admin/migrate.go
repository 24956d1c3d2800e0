package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// Migration says what Migrate did to the tables of the counters, of the history and of the
// policy: created, upgraded or up to date.
type Migration struct {
	Counters string `json:"counters"`
	History  string `json:"history"`
	Policy   string `json:"policy"`
	// Shards is empty if the counts are not in shards.
	Shards string `json:"shards,omitempty"`
}

// The results of a Migration.
const (
	created  = "created"
	upgraded = "upgraded"
	upToDate = "up to date"
)

// MigrationSQL is what Migrate runs, as a file for psql.
func MigrationSQL() string { return schema.File }

// Migrate makes the tables of the counters, of the history and of the policy, or brings them up
// to date in place and keeps their rows.
func (d *Database) Migrate(ctx context.Context) (Migration, error) { return d.MigrateShards(ctx, 0) }

// MigrateShards is Migrate for a database with Citus. Its counts get so many shards. With 0 they
// have the shards that they had, or none.
func (d *Database) MigrateShards(ctx context.Context, shards int) (Migration, error) {
	ready, err := row[struct{ Counters, Policy, Restoring, Nodes, History int32 }](ctx, d,
		"SELECT * FROM ("+schema.Ready+") AS a, ("+schema.NodesReady+") AS b, ("+schema.HistoryReady+") AS c")
	if err != nil {
		return Migration{}, err
	}
	var m Migration
	w := d.work(ctx)
	m.Counters = w.makeTables(ready.Counters == 1 && ready.Nodes == 1, "rate_limit_ephemeral", schema.Counters)
	m.History = w.makeTables(ready.History == 1, "rate_limit_audit", schema.History)
	m.Policy = w.makeTables(ready.Policy == 1, "rate_limit_rules", schema.Policy)
	schemas, err := d.shards(ctx)
	if w.fail(err); w.err == nil && shards+len(schemas) > 0 {
		m.Shards, w.err = d.migrateShards(ctx, cmp.Or(shards, len(schemas)))
	}
	return m, w.err
}

// lockAttempt is the time between two attempts at a lock.
const lockAttempt = 200 * time.Millisecond

// makeTables runs the SQL of a migration in one transaction, unless the tables are ready. first
// is a table that exists if an older version of the tables does.
func (w *work) makeTables(ready bool, first, sql string) string {
	if ready && w.err == nil {
		return upToDate
	}
	exists, err := w.hasTable(w.ctx, first)
	w.fail(err)
	// A text of several commands without parameters is one transaction.
	// A session that waits for the lock of a table makes all others wait behind it, so each attempt
	// is short.
	for started := time.Now(); w.err == nil; {
		_, err := w.conn.PgConn().Exec(w.ctx, schema.Lock+sql).ReadAll()
		err = w.failure(err)
		if locked := (*lockError)(nil); errors.As(err, &locked) {
			if locked.waited = time.Since(started); locked.waited < patience && sleep(w.ctx, lockAttempt) {
				continue
			}
		}
		w.err = w.findHolders(w.ctx, err, true)
		break
	}
	switch {
	case w.err != nil:
		return ""
	case exists:
		return upgraded
	}
	return created
}

// LiveProxies returns the names of the proxies that run.
func (d *Database) LiveProxies(ctx context.Context) ([]string, error) {
	if exists, err := d.hasTable(ctx, "rate_limit_nodes"); err != nil || !exists {
		return nil, err
	}
	return values[string](ctx, d, "SELECT node FROM rate_limit_proxies WHERE live ORDER BY node")
}

// mostShards bounds the number of shards: each has three tables, and in each proxy a queue.
const mostShards = 256

// migrateShards makes the tables of so many shards in a database with Citus. It can run any number of times. The number of shards cannot change, because it says in which shard a row is.
func (d *Database) migrateShards(ctx context.Context, shards int) (string, error) {
	if shards < 1 || shards > mostShards {
		return "", fmt.Errorf("--shards: %d: must be from 1 to %d", shards, mostShards)
	}
	version, err := value[string](ctx, d, "SELECT extversion FROM pg_extension WHERE extname = 'citus'")
	if err != nil {
		return "", err
	}
	if version == nil {
		return "", errors.New("--citus: the database has no extension citus: it must be on the coordinator of Citus 12 or newer, with CREATE EXTENSION citus")
	}
	if major, _, _ := strings.Cut(*version, "."); len(major) < 2 || major < "12" {
		return "", fmt.Errorf("--citus: the server has Citus %s: it must be 12 or newer", *version)
	}
	schemas, err := d.shards(ctx)
	if err != nil {
		return "", err
	}
	if len(schemas) > 0 && len(schemas) != shards {
		return "", fmt.Errorf("--shards: %d: must be %d, the number with which the counts were made: it says in which shard a counter is", shards, len(schemas))
	}
	prefix, err := value[string](ctx, d, "SELECT CASE current_schema() WHEN 'public' THEN 'rl_s' ELSE current_schema() || '_s' END")
	if err != nil {
		return "", err
	}
	var names []string
	for shard := range shards {
		name := *prefix + strconv.Itoa(shard)
		names = append(names, "'"+strings.ReplaceAll(name, "'", "''")+"'")
		if err := d.run(ctx, "SET LOCAL citus.enable_schema_based_sharding = on;\nCREATE SCHEMA IF NOT EXISTS "+identifier(name)+";\nSET LOCAL search_path = "+identifier(name)+";\n"+schema.ShardTables); err != nil {
			return "", fmt.Errorf("making the shard %s: %w", name, err)
		}
	}
	if err := d.run(ctx, schema.Shards); err != nil || len(schemas) > 0 {
		return upToDate, err
	}
	// It comes last: proxies take the database for whole from then on.
	return created, d.run(ctx, strings.Replace(schema.ShardsFunction, "$1", "ARRAY["+strings.Join(names, ", ")+"]", 1))
}

// run runs commands in one transaction, each by itself: Citus passes the text of a command on to the workers.
func (d *Database) run(ctx context.Context, sql string) error {
	return d.together(ctx, func(w *work) {
		command := ""
		for _, text := range strings.SplitAfter(sql, ";\n") {
			command += text
			if strings.Count(command, "$$")%2 == 1 {
				continue // in the body of a function
			}
			if w.err == nil {
				_, err := d.conn.PgConn().Exec(ctx, command).ReadAll()
				w.fail(d.failure(err))
			}
			command = ""
		}
	})
}

// identifier is a name in SQL.
func identifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// shards are the schemas of the shards, or none if the counts are not in shards.
func (d *Database) shards(ctx context.Context) ([]string, error) {
	if found, err := value[int32](ctx, d, schema.ShardsReady); err != nil || *found == 0 {
		return nil, err
	}
	return values[string](ctx, d, schema.ShardNames)
}

// errShardMoved is the error of a query of a table that Citus has moved away meanwhile.
var errShardMoved = errors.New("a shard of the counters is being moved")

// placement is what the server says of such a table.
var placement = regexp.MustCompile(`relation "[^"]*rate_limit_[a-z]+_[0-9]+" does not exist`)

// shardMoved returns errShardMoved for the error of such a query, and other errors as they are.
func shardMoved(err error) error {
	var failed *pgconn.PgError
	if errors.As(err, &failed) && failed.Code == undefinedTable && placement.MatchString(failed.Message) {
		return fmt.Errorf("%w: %s", errShardMoved, failed.Message)
	}
	return err
}

// counterTable is a table of counts.
type counterTable struct {
	name, processes string // in SQL: the table, and that of the processes beside it
	durable         bool
}

// counterTables are the two tables of counts, or those of all shards.
func (d *Database) counterTables(ctx context.Context) ([]counterTable, error) {
	schemas, err := d.shards(ctx)
	if err != nil {
		return nil, err
	}
	if len(schemas) == 0 {
		return []counterTable{{"rate_limit_durable", "rate_limit_processes", true}, {"rate_limit_ephemeral", "rate_limit_processes", false}}, nil
	}
	var all []counterTable
	for _, s := range schemas {
		processes := identifier(s) + ".rate_limit_processes"
		all = append(all, counterTable{identifier(s) + ".rate_limit_durable", processes, true}, counterTable{identifier(s) + ".rate_limit_ephemeral", processes, false})
	}
	return all, nil
}
