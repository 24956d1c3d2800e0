package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// database is the Postgres server of a run. Its settings are Postgres's own, with
// fsync and synchronous_commit on, but it takes more connections, since the proxies
// of all rows run at once.
type database struct {
	server     *cluster.Cluster
	control    *pgx.Conn
	postmaster int // the process
	databases  int // made so far
}

func startDatabase(ctx context.Context) *database {
	d := &database{server: must(cluster.Start(ctx, cluster.Options{Config: map[string]string{"max_connections": "200", "shared_buffers": "128MB"}}))}
	d.control = must(pgx.Connect(ctx, d.server.DSN("postgres")))
	pid := must(os.ReadFile(filepath.Join(d.server.DataDir(), "postmaster.pid")))
	must(fmt.Sscan(string(pid), &d.postmaster))
	return d
}

func (d *database) stop() error {
	return errors.Join(d.control.Close(context.Background()), d.server.Stop())
}

// create makes an empty database and returns its DSN.
func (d *database) create(ctx context.Context) string {
	d.databases++
	name := fmt.Sprint("bench", d.databases)
	must(d.control.Exec(ctx, "CREATE DATABASE "+name))
	return d.server.DSN(name)
}

// totals are what the server has used and done so far. A decision is a statement that
// writes, and a transaction of its own, so counting the transactions that have written
// something counts the statements without any cost for them.
func (d *database) totals(ctx context.Context) sample {
	var transactions, wal int64
	check(d.control.QueryRow(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&transactions, &wal))
	return sample{statements: float64(transactions), walBytes: float64(wal), cpuStore: cpuTime(d.postmaster)}
}

// query runs commands and returns the value that the last one selects, if it
// selects one.
func query(ctx context.Context, dsn string, commands ...string) string {
	conn := must(pgx.Connect(ctx, dsn))
	defer conn.Close(ctx)
	results := must(conn.PgConn().Exec(ctx, strings.Join(commands, ";")).ReadAll())
	if rows := results[len(results)-1].Rows; len(rows) > 0 {
		return string(rows[0][0])
	}
	return ""
}
