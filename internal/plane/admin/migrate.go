package admin

import (
	"context"
	"errors"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// Migration says what Migrate did to the tables of the counters, of the history and of the
// policy: created, upgraded or up to date; and of the policy, on a server that is too old for
// it, not possible.
type Migration struct {
	Counters string `json:"counters"`
	History  string `json:"history"`
	Policy   string `json:"policy"`
	// Parts is empty if the counts are not in parts.
	Parts string `json:"parts,omitempty"`
}

// The results of a Migration.
const (
	created     = "created"
	upgraded    = "upgraded"
	upToDate    = "up to date"
	notPossible = "not possible"
)

// MigrationSQL is what Migrate runs, as a file for psql.
func MigrationSQL() string { return schema.File }

// Migrate makes the tables of the counters, of the history and of the policy, or brings them up
// to date in place and keeps their rows. On a server that is too old for the policy it makes the
// others and returns an error.
func (d *Database) Migrate(ctx context.Context) (Migration, error) { return d.MigrateParts(ctx, 0) }

// MigrateParts is Migrate for a database with Citus. Its counts get so many parts. With 0 they
// have the parts that they had, or none.
func (d *Database) MigrateParts(ctx context.Context, parts int) (Migration, error) {
	ready, err := row[struct{ Counters, Policy, Version, Restoring, Nodes, History int32 }](ctx, d,
		"SELECT * FROM ("+schema.Ready+") AS a, ("+schema.NodesReady+") AS b, ("+schema.HistoryReady+") AS c")
	if err != nil {
		return Migration{}, err
	}
	var m Migration
	if m.Counters, err = d.makeTables(ctx, ready.Counters == 1 && ready.Nodes == 1, "rate_limit_ephemeral", schema.Counters); err != nil {
		return m, err
	}
	if m.History, err = d.makeTables(ctx, ready.History == 1, "rate_limit_audit", schema.History); err != nil {
		return m, err
	}
	if ready.Version < schema.OldestPolicyServer {
		m.Policy = notPossible
		return m, tooOld(d.major())
	}
	if m.Policy, err = d.makeTables(ctx, ready.Policy == 1, "rate_limit_rules", schema.Policy); err != nil {
		return m, err
	}
	if parts == 0 {
		schemas, err := d.parts(ctx)
		if err != nil || len(schemas) == 0 {
			return m, err
		}
		parts = len(schemas)
	}
	m.Parts, err = d.migrateParts(ctx, parts)
	return m, err
}

// lockAttempt is for how long a migration waits for a lock at once. longerAttempt is the lock_timeout: until
// then the server knows which sessions hold the lock.
const (
	lockAttempt   = 200 * time.Millisecond
	longerAttempt = "SET LOCAL lock_timeout = '500ms';"
)

// makeTables runs the SQL of a migration in one transaction, unless the tables are ready. first
// is a table that exists if an older version of the tables does.
func (d *Database) makeTables(ctx context.Context, ready bool, first, sql string) (string, error) {
	if ready {
		return upToDate, nil
	}
	exists, err := d.hasTable(ctx, first)
	if err != nil {
		return "", err
	}
	// A text of several commands without parameters is one transaction.
	// A session that waits for the lock of a table makes all others wait behind it, so each attempt
	// is short.
	var holders []string // on a busy server, an attempt can end before they are found
	for started := time.Now(); ; {
		err = d.patiently(ctx, lockAttempt, func() error {
			_, err := d.conn.PgConn().Exec(ctx, schema.Lock+longerAttempt+sql).ReadAll()
			return err
		})
		var locked *lockError
		if !errors.As(err, &locked) {
			if err != nil {
				return "", err
			}
			break
		}
		if len(locked.holders) > 0 {
			holders = locked.holders
		}
		locked.waited, locked.holders = time.Since(started), holders
		if locked.waited >= patience || !sleep(ctx, lockAttempt) {
			return "", err
		}
	}
	if exists {
		return upgraded, nil
	}
	return created, nil
}
