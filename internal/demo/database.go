package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// connectTimeout bounds the check that the database of DATABASE_URL responds.
const connectTimeout = 10 * time.Second

// startDatabase returns the DSN of the demo's database: the one of DATABASE_URL, which must respond, or the
// one of a private cluster, which startDatabase starts.
func startDatabase(ctx context.Context, o options, out io.Writer) (dsn string, stop func() error, err error) {
	if o.databaseURL != "" {
		if err := ping(ctx, o.databaseURL); err != nil {
			if ctx.Err() != nil {
				return "", nil, ctx.Err()
			}
			return "", nil, fmt.Errorf("DATABASE_URL: %s", oneLine(err))
		}
		return o.databaseURL, func() error { return nil }, nil
	}
	fmt.Fprintln(out, "Postgres: starting it ...")
	wanted := filepath.Join(o.state, "postgres")
	c, err := cluster.Start(ctx, cluster.Options{Dir: wanted, Progress: out})
	if err != nil {
		return "", nil, err
	}
	if err := noteFolder(o.state, wanted, c.Dir()); err != nil {
		return "", nil, errors.Join(err, c.Stop())
	}
	return c.DSN("postgres"), c.Stop, nil
}

// oneLine returns an error as one line. pgx writes a line for each address that it has tried.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// noteFolder records the folder that the cluster uses, for `make clean`, unless it is the wanted folder,
// which is in the state folder.
func noteFolder(state, wanted, used string) error {
	note := filepath.Join(state, "postgres.elsewhere")
	if used != wanted {
		return os.WriteFile(note, []byte(used+"\n"), 0o644)
	}
	return os.RemoveAll(note)
}

func ping(ctx context.Context, dsn string) error {
	db, err := pgxdb.Open(dsn, pgxdb.Options{}) // its errors contain no part of the password
	if err != nil {
		return err
	}
	defer db.Close()
	return db.Exec(ctx, connectTimeout, "SELECT 1")
}

// redact returns a DSN without its password, or if it is not a URL, words that stand for it.
func redact(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		return "of DATABASE_URL"
	}
	query := u.Query()
	for _, name := range []string{"password", "sslpassword"} {
		if query.Has(name) {
			query.Set(name, "xxxxx")
			u.RawQuery = query.Encode()
		}
	}
	return u.Redacted()
}
