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
	admin      *pgx.Conn
	postmaster int               // its process id
	created    int               // number of created databases
	policies   map[string]string // maps the SQL of a policy to the DSN of its database
}

func startDatabase(ctx context.Context) *database {
	d := &database{server: must(cluster.Start(ctx, cluster.Options{})), policies: map[string]string{}}
	d.admin = must(pgx.Connect(ctx, d.server.DSN("postgres")))
	pid := must(os.ReadFile(filepath.Join(d.server.DataDir(), "postmaster.pid")))
	must(fmt.Sscan(string(pid), &d.postmaster))
	return d
}

func (d *database) stop() error {
	return errors.Join(d.admin.Close(context.Background()), d.server.Stop())
}

// create creates an empty database and returns its DSN.
func (d *database) create(ctx context.Context) string {
	d.created++
	name := fmt.Sprint("bench", d.created)
	must(d.admin.Exec(ctx, "CREATE DATABASE "+name))
	return d.server.DSN(name)
}

// walSize returns the number of bytes that the server has written to its write-ahead log.
func (d *database) walSize(ctx context.Context) (bytes float64) {
	check(d.admin.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8`).Scan(&bytes))
	return bytes
}

// query executes SQL commands, and returns the first value that the last command selects, or "" if it selects
// no row.
func query(ctx context.Context, dsn string, commands ...string) string {
	conn := must(pgx.Connect(ctx, dsn))
	defer conn.Close(ctx)
	results := must(conn.PgConn().Exec(ctx, strings.Join(commands, ";")).ReadAll())
	if rows := results[len(results)-1].Rows; len(rows) > 0 {
		return string(rows[0][0])
	}
	return ""
}
