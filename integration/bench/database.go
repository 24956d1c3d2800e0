package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
)

// settings are the server's, where they are not Postgres's own. Durability is:
// fsync and synchronous_commit are on. More connections than usual are allowed,
// since a proxy for each row is connected at once.
var settings = map[string]string{
	"max_connections": "200",
	"shared_buffers":  "128MB",
}

// database is the Postgres server of a run.
type database struct {
	server     *cluster.Cluster
	control    *pgx.Conn
	postmaster int
	databases  int
}

func startDatabase(ctx context.Context) (_ *database, err error) {
	d := &database{}
	if d.server, err = cluster.Start(ctx, cluster.Options{Config: settings}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.server.Stop())
		}
	}()
	text, err := os.ReadFile(filepath.Join(d.server.DataDir(), "postmaster.pid"))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	if d.postmaster, err = strconv.Atoi(first); err != nil {
		return nil, fmt.Errorf("postmaster.pid: %w", err)
	}
	d.control, err = pgx.Connect(ctx, d.server.DSN("postgres"))
	return d, err
}

func (d *database) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(d.control.Close(ctx), d.server.Stop())
}

// create makes an empty database and returns its DSN. Each row has its own,
// so that none works on what another has left behind.
func (d *database) create(ctx context.Context) (string, error) {
	d.databases++
	name := "bench" + strconv.Itoa(d.databases)
	if _, err := d.control.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	return d.server.DSN(name), nil
}

// counters are what the server has written since it was made.
type counters struct {
	// transactions that have written something: each takes a number. A decision
	// is a statement that writes, and a transaction of its own, so the difference
	// counts statements, at once and at no cost to what is measured.
	transactions int64
	wal          int64 // bytes of the write-ahead log
}

func (d *database) counters(ctx context.Context) (counters, error) {
	var c counters
	err := d.control.QueryRow(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
		(pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&c.transactions, &c.wal)
	return c, err
}

// cpu is the CPU time of all the server's processes.
func (d *database) cpu() (time.Duration, error) { return cpuOfFamily(d.postmaster) }

// describe names the server and the settings that matter.
func (d *database) describe(ctx context.Context) (string, error) {
	var parts []string
	for _, name := range []string{"server_version", "shared_buffers", "fsync", "synchronous_commit", "wal_level", "max_wal_size"} {
		var value string
		if err := d.control.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			return "", err
		}
		if name == "server_version" {
			value, _, _ = strings.Cut(value, " ")
			parts = append(parts, "Postgres "+value)
			continue
		}
		parts = append(parts, name+" "+value)
	}
	return parts[0] + " (" + strings.Join(parts[1:], ", ") + ")", nil
}

// queryAt asks another database of the server for one number.
func queryAt(ctx context.Context, dsn, sql string) (n int64, err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	err = conn.QueryRow(ctx, sql).Scan(&n)
	return n, err
}

// execAt runs SQL on another database of the server.
func execAt(ctx context.Context, dsn, sql string) (err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}
