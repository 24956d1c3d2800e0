package admin

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

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

// Part is something that Migrate, or the upkeep, has made.
type Part struct {
	// Kind is a table, view, function or aggregate, or the schema of a part of the counters.
	Kind string `json:"kind"`
	// Name is with the schema, and of a function with the types of its parameters.
	Name string `json:"name"`
}

// made matches what the SQL of the migration makes.
var made = regexp.MustCompile(`CREATE (?:UNLOGGED |OR REPLACE )?(?:TABLE|VIEW|FUNCTION|AGGREGATE) (?:IF NOT EXISTS )?(rate_limit_[a-z0-9_]+)`)

// isAuditPartition is whether the table c has the name of a partition of the audit log: it is one, or was
// detached.
const isAuditPartition = "c.relname ~ '^rate_limit_audit_[0-9]{8}(_[0-9]+)?$'"

// Parts returns what Uninstall drops, in that order. Partitions go with their table, and triggers
// and indexes as well.
func (d *Database) Parts(ctx context.Context) ([]Part, error) {
	var names []string
	for _, found := range made.FindAllStringSubmatch(schema.File+schema.Parts+schema.PartsFunction, -1) {
		names = append(names, found[1])
	}
	others, err := value[*string](ctx, d, schema.Others)
	if err != nil {
		return nil, err
	}
	if *others != nil {
		return nil, fmt.Errorf("%s: it would be dropped, too; rename it first", **others)
	}
	schemas, err := d.parts(ctx)
	if err != nil {
		return nil, err
	}
	// A partition whose drop was interrupted has no parent.
	return rows[Part](ctx, d, `SELECT kind, name FROM (
	SELECT CASE c.relkind WHEN 'v' THEN 1 ELSE 2 END AS step, CASE c.relkind WHEN 'v' THEN 'view' ELSE 'table' END AS kind, format('%I.%I', n.nspname, c.relname) AS name
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE pg_table_is_visible(c.oid) AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
		AND (c.relname = ANY ($1) OR `+isAuditPartition+`)
	UNION ALL
	SELECT CASE p.prokind WHEN 'a' THEN 3 ELSE 4 END, CASE p.prokind WHEN 'a' THEN 'aggregate' ELSE 'function' END,
		format('%I.%I(%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid))
	FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE pg_function_is_visible(p.oid) AND p.proname = ANY ($1)
	UNION ALL
	SELECT 0, 'schema', quote_ident(s) FROM unnest($2::text[]) AS s
	) AS parts ORDER BY step, name`, names, schemas)
}

// LiveProxies returns the names of the proxies that run.
func (d *Database) LiveProxies(ctx context.Context) ([]string, error) {
	if exists, err := d.hasTable(ctx, "rate_limit_nodes"); err != nil || !exists {
		return nil, err
	}
	return values[string](ctx, d, "SELECT n.node FROM rate_limit_nodes n WHERE "+schema.NodeIsLive+" ORDER BY n.node")
}

// Uninstall drops the parts, all or none. It fails if a proxy is live, or if something that is
// not ours depends on a part.
func (d *Database) Uninstall(ctx context.Context, parts []Part) error {
	live, err := d.LiveProxies(ctx)
	if err != nil {
		return err
	}
	if len(live) > 0 {
		return fmt.Errorf("proxies are running: %s. Stop them, and wait for 10 seconds", strings.Join(live, ", "))
	}
	return d.together(ctx, func(w *work) {
		w.execute("SET LOCAL lock_timeout = '10s'")
		for _, kind := range []string{"schema", "view", "table", "aggregate", "function"} {
			var names []string
			for _, part := range parts {
				if part.Kind == kind {
					names = append(names, part.Name)
				}
			}
			if len(names) == 0 {
				continue
			}
			slices.Sort(names)
			rest := ""
			if kind == "schema" {
				rest = " CASCADE" // with its tables
			}
			w.execute("DROP "+strings.ToUpper(kind)+" "+strings.Join(names, ", ")+rest, pgx.QueryExecModeSimpleProtocol)
		}
	})
}
