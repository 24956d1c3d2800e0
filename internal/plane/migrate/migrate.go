// Package migrate makes the tables of the counters, of the history and of the policy, or brings them up to
// date in place and keeps their rows.
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

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// Done says what Run did to the tables of the counters, of the history and of the policy: created,
// upgraded or up to date.
type Done struct {
	Counters string `json:"counters"`
	History  string `json:"history"`
	Policy   string `json:"policy"`
	// Shards is nil if the counts are not in shards.
	Shards *string `json:"shards,omitempty"`
}

// The values of Done.
const (
	created  = "created"
	upgraded = "upgraded"
	upToDate = "up to date"
)

const (
	// Patience bounds the wait for the locks of tables.
	Patience = 10 * time.Second
	// lockAttempt is the time between two attempts at a lock.
	lockAttempt = 200 * time.Millisecond
	// lockNotAvailable is the SQLSTATE of a lock timeout.
	lockNotAvailable = "55P03"
	// mostShards bounds the number of shards: each has three tables, and in each proxy a queue.
	mostShards = 256
)

// Run makes all tables in a database. With Citus its counts get so many shards; with 0 they have the shards
// that they had, or none. After an error, Done has what was done.
func Run(ctx context.Context, conn *pgx.Conn, shards int) (done Done, err error) {
	var counters, policy, restoring, nodes, history int32
	err = conn.QueryRow(ctx, "SELECT * FROM ("+schema.Ready+") AS a, ("+schema.NodesReady+") AS b, "+
		"("+schema.HistoryReady+") AS c").
		Scan(&counters, &policy, &restoring, &nodes, &history)
	for _, t := range []struct {
		done       *string
		ready      bool
		first, sql string
	}{
		{&done.Counters, counters == 1 && nodes == 1, "rate_limit_ephemeral", schema.Counters},
		{&done.History, history == 1, "rate_limit_audit", schema.History},
		{&done.Policy, policy == 1, "rate_limit_rules", schema.Policy},
	} {
		if err == nil {
			*t.done, err = makeTables(ctx, conn, t.ready, t.first, t.sql)
		}
	}
	if err != nil {
		return done, err
	}
	schemas, err := shardsOf(ctx, conn)
	if err == nil && shards+len(schemas) > 0 {
		var is string
		is, err = makeShards(ctx, conn, cmp.Or(shards, len(schemas)), len(schemas))
		done.Shards = &is
	}
	return done, err
}

// makeTables runs the SQL of a migration in one transaction, unless the tables are ready. first is a table
// that exists if an older version of the tables does.
func makeTables(ctx context.Context, conn *pgx.Conn, ready bool, first, sql string) (string, error) {
	if ready {
		return upToDate, nil
	}
	exists, err := value[bool](ctx, conn, "SELECT to_regclass($1::text) IS NOT NULL", first)
	// A session that waits for the lock of a table makes all others wait behind it, so each attempt is
	// short. A text of several commands without parameters is one transaction.
	for until := time.Now().Add(Patience); err == nil; {
		_, err = conn.PgConn().Exec(ctx, schema.Lock+sql).ReadAll()
		var failed *pgconn.PgError
		if !errors.As(err, &failed) || failed.Code != lockNotAvailable || time.Now().After(until) {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(lockAttempt):
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

// makeShards makes the tables of so many shards in a database with Citus. It can run any number of times. The
// number of shards cannot change, because it says in which shard a row is.
func makeShards(ctx context.Context, conn *pgx.Conn, shards, had int) (string, error) {
	if shards < 1 || shards > mostShards {
		return "", fmt.Errorf("--shards: %d: must be from 1 to %d", shards, mostShards)
	}
	version, err := value[string](ctx, conn, "SELECT coalesce(max(extversion), '') FROM pg_extension WHERE "+
		"extname = 'citus'")
	if err != nil {
		return "", err
	}
	if version == "" {
		return "", errors.New("--citus: the database has no extension citus: it must be on the " +
			"coordinator of " +
			"Citus 12 or newer, with CREATE EXTENSION citus")
	}
	if major, _, _ := strings.Cut(version, "."); len(major) < 2 || major < "12" {
		return "", fmt.Errorf("--citus: the server has Citus %s: it must be 12 or newer", version)
	}
	if had > 0 && had != shards {
		return "", fmt.Errorf("--shards: %d: must be %d, the number with which the counts were made: it "+
			"says in "+
			"which shard a counter is", shards, had)
	}
	prefix, err := value[string](ctx, conn, "SELECT CASE current_schema() WHEN 'public' THEN 'rl_s' ELSE "+
		"current_schema() || '_s' END")
	if err != nil {
		return "", err
	}
	var names []string
	for shard := range shards {
		name := fmt.Sprint(prefix, shard)
		names = append(names, "'"+strings.ReplaceAll(name, "'", "''")+"'")
		in := pgx.Identifier{name}.Sanitize()
		if err := run(ctx, conn, "SET LOCAL citus.enable_schema_based_sharding = on;\nCREATE SCHEMA IF NOT "+
			"EXISTS "+in+
			";\nSET LOCAL search_path = "+in+";\n"+schema.ShardTables); err != nil {
			return "", fmt.Errorf("making the shard %s: %w", name, err)
		}
	}
	if err := run(ctx, conn, schema.Shards); err != nil || had > 0 {
		return upToDate, err
	}
	// It comes last: proxies take the database for whole from then on.
	return created, run(ctx, conn, strings.Replace(schema.ShardsFunction, "$1", "ARRAY["+strings.Join(names,
		", ")+"]", 1))
}

// run runs commands in one transaction, each by itself: Citus passes the text of a command on to the workers.
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

// shardsOf are the schemas of the shards, or none if the counts are not in shards.
func shardsOf(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	if found, err := value[int32](ctx, conn, schema.ShardsReady); err != nil || found == 0 {
		return nil, err
	}
	result, err := conn.Query(ctx, schema.ShardNames)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(result, pgx.RowTo[string])
}

// value runs a query with one row and one column.
func value[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) (is T, err error) {
	err = conn.QueryRow(ctx, sql, args...).Scan(&is)
	return is, err
}
