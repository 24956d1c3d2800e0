package pg_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// settingRow matches a row of testdata/settings.txt, which docs/operating.md sums up: a setting, a value, and
// its effect on decisions.
var settingRow = regexp.MustCompile("(?m)^([a-z_]+) = (.+): (no effect|named)$")

// documentedSettings returns the matches of settingRow.
func documentedSettings(t *testing.T) [][]string {
	text, err := os.ReadFile("testdata/settings.txt")
	if err != nil {
		t.Fatal(err)
	}
	rows := settingRow.FindAllStringSubmatch(string(text), -1)
	if len(rows) < 20 {
		t.Fatalf("testdata/settings.txt has %d settings, want at least 20", len(rows))
	}
	return rows
}

// execute executes SQL on a connection without harmful settings.
func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	cluster.Execute(t, conformance.WithSettings(t, dsn, "statement_timeout", "0", "lock_timeout", "0", "jit",
		"off", "default_transaction_read_only", "off"), sql)
}

// alterDatabase changes settings of the database of a DSN.
func alterDatabase(t *testing.T, dsn string, changes ...string) {
	t.Helper()
	commands := ""
	for _, change := range changes {
		commands += "EXECUTE format('ALTER DATABASE %I " + strings.ReplaceAll(change, "'", "''") +
			"', current_database());"
	}
	execute(t, dsn, "DO $$ BEGIN "+commands+" END $$")
}

// hasSetting reports whether the server has a setting.
func hasSetting(t *testing.T, dsn, name string) bool {
	return cluster.Query[bool](t, dsn, "SELECT current_setting($1, true) IS NOT NULL", name)
}

// newLimiter returns a limiter of 1,000 events per hour.
func newLimiter(t *testing.T, db pgdb.DB) *ratelimit.Limiter {
	t.Helper()
	store, err := postgres.New(db, postgres.Options{OnError: func(err error) { t.Log(err) }})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.NewLimiter(store,
		ratelimit.Limit{Prefix: "api", Algorithm: ratelimit.SlidingWindow, Events: 1000, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	limiter.Timeout = 10 * time.Second
	return limiter
}

// decide charges n keys, and fails the test unless each charge is allowed.
func decide(t *testing.T, db pgdb.DB, n int) {
	t.Helper()
	limiter := newLimiter(t, db)
	for i := range n {
		if d, err := limiter.Take(t.Context(), fmt.Sprint("key ", i), 1); err != nil || !d.Allowed {
			t.Fatalf("charge of key %d: allowed %v, error %v, want allowed", i, d.Allowed, err)
		}
	}
}

// harmful returns the result of pg.Harmful on a new connection.
func harmful(t *testing.T, open func(t testing.TB, dsn string) pgdb.DB, dsn string) error {
	db := open(t, dsn)
	defer db.Close()
	return pg.Harmful(t.Context(), db)
}

// A documented setting has no effect on decisions, or Harmful names it, and the statement that corrects it.
// After this statement, Harmful finds nothing.
func TestDocumentedSettingsAreHarmlessOrNamed(t *testing.T) {
	open := drivers.All["pgwire"]
	t.Parallel()
	dsn := cluster.Open(t)
	first := open(t, dsn)
	decide(t, first, 1)
	first.Close()
	for _, setting := range documentedSettings(t) {
		name, value, named := setting[1], setting[2], setting[3] == "named"
		if !hasSetting(t, dsn, name) {
			continue // only newer servers have it
		}
		alterDatabase(t, dsn, "SET "+name+" = "+value)
		err, want := harmful(t, open, dsn), "<nil>"
		if named {
			want = name + " is "
		}
		switch {
		case !strings.Contains(fmt.Sprint(err), want):
			t.Errorf("%s = %s: Harmful() = %v, want %s", name, value, err, want)
		case named:
			_, correction, _ := strings.Cut(err.Error(), ": ALTER")
			execute(t, dsn, "ALTER"+correction)
			if err := harmful(t, open, dsn); err != nil {
				t.Errorf("%s, corrected: Harmful() = %v, want nil", name, err)
			}
		default:
			db := open(t, dsn)
			decide(t, db, 3)
			db.Close()
		}
		alterDatabase(t, dsn, "RESET "+name)
	}
}

// usePolicyAndHistory creates the tables of the policy and of the history, reads the policy, and writes two
// records into the history, one with the path /a and one with the given path. It returns the errors that the
// history reports.
func usePolicyAndHistory(t *testing.T, db pgdb.DB, path string) (reports string) {
	t.Helper()
	ctx := t.Context()
	if err := schema.CreateTables(ctx, db); err != nil {
		t.Fatal(err)
	}
	p := policy.New(db, policy.Settings{Refresh: -1, Health: health.New(ctx, nil, nil)})
	defer p.Close()
	if err := p.Refresh(ctx); err != nil {
		t.Error(err)
	}
	var mu sync.Mutex
	w := history.New(db, history.Settings{OnError: func(err error) {
		mu.Lock()
		reports += err.Error()
		mu.Unlock()
	}})
	defer w.Close()
	for i, path := range []string{"/a", path} {
		history.Add(w, &history.Record{Time: time.Now(), Key: fmt.Sprint(i), Outcome: outcome.Limited,
			Audit: option.Audit{Level: option.AuditDenied}, Path: path, Method: "GET",
			Host: "example.com"})
	}
	if err := w.Flush(ctx); err != nil {
		t.Error(err)
	}
	upkeep := &pgdb.Statement{SQL: history.UpkeepSQL("0")}
	err := db.Run(ctx, time.Minute, []*pgdb.Statement{upkeep})
	if err = errors.Join(err, upkeep.Err); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return reports
}

// With a database in LATIN1, the policy, the history and limits work. A record or a key with text beyond
// LATIN1 fails with a hint, and the records and keys beside it do not.
func TestLatin1RefusesOnlyTextItLacks(t *testing.T) {
	t.Parallel()
	admin := cluster.Open(t)
	latin := cluster.Query[string](t, admin, "SELECT current_database() || '_latin1'")
	cluster.Execute(t, admin,
		"CREATE DATABASE "+latin+" TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
	t.Cleanup(func() { cluster.Execute(t, admin, "DROP DATABASE "+latin+" WITH (FORCE)") })
	dsn := strings.Replace(admin, strings.TrimSuffix(latin, "_latin1"), latin, 1)
	db := drivers.All["pgwire"](t, dsn)
	defer db.Close()
	reports := usePolicyAndHistory(t, db, "/\U0001F600")
	if !strings.Contains(reports, pg.EncodingHint) {
		t.Errorf("a path beyond LATIN1: reported %q, want %q in it", reports, pg.EncodingHint)
	}
	if n := cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_audit"); n != 1 {
		t.Errorf("the audit log has %d rows, want 1", n)
	}
	limiter := newLimiter(t, db)
	if d, err := limiter.Take(t.Context(), "caf\u00e9", 1); err != nil || d.Remaining != 999 {
		t.Errorf("a key in LATIN1: %+v, error %v, want 999 remaining", d, err)
	}
	_, err := limiter.Take(t.Context(), "\U0001F600", 1)
	if !strings.Contains(fmt.Sprint(err), pg.EncodingHint) {
		t.Errorf("a key beyond LATIN1: error %v, want %q in it", err, pg.EncodingHint)
	}
}
