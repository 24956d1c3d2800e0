// Package migrate creates the tables of the counters, the history and the policy, or upgrades them in place,
// for the command migrate. By default, proxies need no such command, because each migrates the tables that it
// uses.
//
// Run migrates each of these three parts in a transaction of its own, keeps the rows, and changes nothing in
// tables that are up to date. Run waits for locks in short attempts, so that no other session waits long
// behind Run. With Citus, Run also creates the tables of the shards. The number of shards cannot change
// later.
//
// The command tests it in caddymodule/command (testdata/migrate.txt), and package schema the SQL
// (TestMigrationsMakeSameTables).
package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// Results holds the result of Run for the tables of the counters, the history and the policy: created,
// upgraded or up to date. "" means that Run failed at these tables, or before it reached them.
type Results struct {
	Counters string `json:"counters"`
	History  string `json:"history"`
	Policy   string `json:"policy"`
	// Shards is the result for the tables of the shards, or nil if the counts are not in shards.
	Shards *string `json:"shards,omitempty"`
	// Exposed has a sentence about each role with rights on the policy or on secrets, with the REVOKE, if
	// rate_limit_grant did not grant them.
	Exposed []string `json:"exposed,omitempty"`
}

// The values of the fields of Results.
const (
	created  = "created"
	upgraded = "upgraded"
	upToDate = "up to date"
)

const (
	// Patience bounds the time for which Run repeats a migration that a lock of another session stops.
	Patience = 10 * time.Second
	// lockPause is the pause between two attempts to lock the tables.
	lockPause = 200 * time.Millisecond
	// lockNotAvailable is the SQLSTATE of a lock timeout.
	lockNotAvailable = "55P03"
	// maxShards bounds the number of shards. Each shard has four tables, and a queue in each proxy.
	maxShards = 256
)

// Run creates or upgrades all tables in a database. With Citus, shards is the number of shards for the
// counts. If shards is 0, Run upgrades existing shards, and creates none. After an error, results has the
// results of the parts that were migrated before.
func Run(ctx context.Context, conn *pgx.Conn, shards int) (results Results, err error) {
	var counters, policy, restoring, nodes, history int32
	err = conn.QueryRow(ctx, "SELECT * FROM ("+schema.Ready+") AS a, ("+schema.NodesReady+") AS b, "+
		"("+schema.HistoryReady+") AS c").
		Scan(&counters, &policy, &restoring, &nodes, &history)
	for _, t := range []struct {
		result     *string
		ready      bool
		table, sql string
	}{
		{&results.Counters, counters == 1 && nodes == 1, "rate_limit_ephemeral", schema.Counters},
		{&results.History, history == 1, "rate_limit_audit", schema.History},
		{&results.Policy, policy == 1, "rate_limit_rules", schema.Policy},
	} {
		if err == nil {
			*t.result, err = makeTables(ctx, conn, t.ready, t.table, t.sql)
		}
	}
	if err != nil {
		return results, err
	}
	schemas, err := shardSchemas(ctx, conn)
	if err == nil && shards+len(schemas) > 0 {
		var result string
		result, err = makeShards(ctx, conn, cmp.Or(shards, len(schemas)), len(schemas))
		results.Shards = &result
	}
	if err == nil {
		results.Exposed, err = queryColumn(ctx, conn, "SELECT rate_limit_exposed()")
	}
	return results, err
}

// makeTables runs the SQL of a migration in one transaction, unless the tables are ready. makeTables returns
// upgraded if table existed before, and else created.
func makeTables(ctx context.Context, conn *pgx.Conn, ready bool, table, sql string) (string, error) {
	if ready {
		return upToDate, nil
	}
	exists, err := queryValue[bool](ctx, conn, "SELECT to_regclass($1::text) IS NOT NULL", table)
	// While a session waits for the lock of a table, all later sessions queue behind it, so each attempt is
	// short. Several commands in one text without parameters are one transaction.
	for deadline := time.Now().Add(Patience); err == nil; {
		_, err = conn.PgConn().Exec(ctx, schema.Lock+sql).ReadAll()
		var failed *pgconn.PgError
		if !errors.As(err, &failed) || failed.Code != lockNotAvailable || time.Now().After(deadline) {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(lockPause):
			err = nil
		}
	}
	switch {
	case err != nil:
		return "", err
	case exists:
		return upgraded, nil
	}
	return created, nil
}

// makeShards creates or upgrades the tables of the shards in a database with Citus. existing is the number of
// shards that exist. If it is not 0, shards must be the same number, because the number of shards determines
// the shard of each row.
func makeShards(ctx context.Context, conn *pgx.Conn, shards, existing int) (string, error) {
	if shards < 1 || shards > maxShards {
		return "", fmt.Errorf("--shards: %d: must be from 1 to %d", shards, maxShards)
	}
	version, err := queryValue[string](ctx, conn,
		"SELECT coalesce(max(extversion), '') FROM pg_extension WHERE extname = 'citus'")
	if err != nil {
		return "", err
	}
	if version == "" {
		return "", errors.New("--citus: the database has no extension citus: it must be on the " +
			"coordinator of Citus 12 or newer, with CREATE EXTENSION citus")
	}
	if major, _, _ := strings.Cut(version, "."); len(major) < 2 || major < "12" {
		return "", fmt.Errorf("--citus: the server has Citus %s: it must be 12 or newer", version)
	}
	if existing > 0 && existing != shards {
		return "", fmt.Errorf("--shards: %d: must be %d, the number with which the tables were created: it "+
			"determines the shard of a counter", shards, existing)
	}
	prefix, err := queryValue[string](ctx, conn,
		"SELECT CASE current_schema() WHEN 'public' THEN 'rl_s' ELSE current_schema() || '_s' END")
	if err != nil {
		return "", err
	}
	var names []string
	for shard := range shards {
		name := fmt.Sprint(prefix, shard)
		names = append(names, "'"+strings.ReplaceAll(name, "'", "''")+"'")
		identifier := pgx.Identifier{name}.Sanitize()
		if err := run(ctx, conn, "SET LOCAL citus.enable_schema_based_sharding = on;\nCREATE SCHEMA IF NOT "+
			"EXISTS "+identifier+
			";\nSET LOCAL search_path = "+identifier+";\n"+schema.ShardTables); err != nil {
			return "", fmt.Errorf("creating the shard %s: %w", name, err)
		}
	}
	if err := run(ctx, conn, schema.Shards+schema.GrantAgain); err != nil || existing > 0 {
		return upToDate, err
	}
	// Create the function last, because proxies use the shards as soon as the function exists.
	return created, run(ctx, conn, strings.Replace(schema.ShardsFunction, "$1", "ARRAY["+strings.Join(names,
		", ")+"]", 1)+"\n"+schema.GrantAgain+"\n"+schema.LedgerUpkeep+";\n")
}

// run runs commands in one transaction. It sends each command in a query of its own, because Citus forwards
// the whole text of a query to the workers, including commands that only the coordinator must run.
func run(ctx context.Context, conn *pgx.Conn, sql string) error {
	return pgx.BeginFunc(ctx, conn, func(pgx.Tx) error {
		command := "SET LOCAL lock_timeout = '10s';\n"
		for text := range strings.SplitAfterSeq(sql, ";\n") {
			command += text
			if strings.Count(command, "$$")%2 == 1 {
				continue // in the body of a function
			}
			if _, err := conn.PgConn().Exec(ctx, command).ReadAll(); err != nil {
				return err
			}
			command = ""
		}
		return nil
	})
}

// shardSchemas returns the schemas of the shards, or none if the counts are not in shards.
func shardSchemas(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	if ready, err := queryValue[int32](ctx, conn, schema.ShardsReady); err != nil || ready == 0 {
		return nil, err
	}
	return queryColumn(ctx, conn, schema.ShardNames)
}

// queryColumn runs a query that returns rows with one text.
func queryColumn(ctx context.Context, conn *pgx.Conn, sql string) ([]string, error) {
	result, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(result, pgx.RowTo[string])
}

// queryValue runs a query that returns one row with one column.
func queryValue[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) (result T, err error) {
	err = conn.QueryRow(ctx, sql, args...).Scan(&result)
	return result, err
}
