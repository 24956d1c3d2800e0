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

// database is a Postgres server with default settings, so with fsync and synchronous_commit on.
type database struct {
	server     *cluster.Cluster
	control    *pgx.Conn
	postmaster int               // the process
	databases  int               // made so far
	policies   map[string]string // the DSNs of databases with a policy, by the SQL of their tables
}

func startDatabase(ctx context.Context) *database {
	d := &database{server: must(cluster.Start(ctx, cluster.Options{})), policies: map[string]string{}}
	d.control = must(pgx.Connect(ctx, d.server.DSN("postgres")))
	pid := must(os.ReadFile(filepath.Join(d.server.DataDir(), "postmaster.pid")))
	must(fmt.Sscan(string(pid), &d.postmaster))
	return d
}

func (d *database) stop() error {
	return errors.Join(d.control.Close(context.Background()), d.server.Stop())
}

// create creates an empty database and returns its DSN.
func (d *database) create(ctx context.Context) string {
	d.databases++
	name := fmt.Sprint("bench", d.databases)
	must(d.control.Exec(ctx, "CREATE DATABASE "+name))
	return d.server.DSN(name)
}

// wal returns the number of bytes that the server has written to its write-ahead log.
func (d *database) wal(ctx context.Context) (bytes float64) {
	check(d.control.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8`).Scan(&bytes))
	return bytes
}

// query executes SQL commands, and returns the value that the last one selects, or "".
func query(ctx context.Context, dsn string, commands ...string) string {
	conn := must(pgx.Connect(ctx, dsn))
	defer conn.Close(ctx)
	results := must(conn.PgConn().Exec(ctx, strings.Join(commands, ";")).ReadAll())
	if rows := results[len(results)-1].Rows; len(rows) > 0 {
		return string(rows[0][0])
	}
	return ""
}
