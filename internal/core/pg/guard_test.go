package pg_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// row is a row of the table of settings in docs/operating.md: a setting with a value, and whether it
// is named.
var row = regexp.MustCompile("(?m)^\\| `([a-z_]+) = ([^`]+)` \\|.*\\| (no effect|named) \\|$")

// documented returns the rows of that table.
func documented(t *testing.T) [][]string {
	text, err := os.ReadFile("../../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	found := row.FindAllStringSubmatch(string(text), -1)
	if len(found) < 20 {
		t.Fatalf("docs/operating.md has %d settings", len(found))
	}
	return found
}

// alter changes settings of the database of a DSN.
func alter(t *testing.T, dsn string, changes ...string) {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	for name, value := range map[string]string{"statement_timeout": "0", "lock_timeout": "0", "jit": "off",
		"default_transaction_read_only": "off"} {
		query.Set(name, value)
	}
	u.RawQuery = query.Encode()
	text := ""
	for _, change := range changes {
		text += "EXECUTE format('ALTER DATABASE %I " + strings.ReplaceAll(change, "'", "''") +
			"', current_database());"
	}
	cluster.Execute(t, u.String(), "DO $$ BEGIN "+text+" END $$")
}

// known reports whether the server has a setting.
func known(t *testing.T, dsn, name string) bool {
	return cluster.Query[bool](t, dsn, "SELECT current_setting($1, true) IS NOT NULL", name)
}

// decide asks for n decisions, and fails if one of them is not made.
func decide(t *testing.T, db pgdb.DB, n int) {
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
	for i := range n {
		if d, err := limiter.Take(context.Background(), fmt.Sprint("key ", i), 1); err != nil || !d.Allowed {
			t.Fatalf("decision %d: %v, %v", i, d.Allowed, err)
		}
	}
}

// Each setting of the document has no effect on decisions, or is named with the statement that mends
// it, over each driver.
func TestEachSettingOfTheDocument(t *testing.T) {
	for name, open := range drivers.All {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := cluster.Open(t)
			first := open(t, dsn)
			decide(t, first, 1)
			first.Close()
			for _, setting := range documented(t) {
				name, value, named := setting[1], setting[2], setting[3] == "named"
				if !known(t, dsn, name) {
					continue // of a newer server
				}
				alter(t, dsn, "SET "+name+" = "+value)
				db := open(t, dsn)
				err := pg.Harmful(context.Background(), db)
				if named != (err != nil) || named && !strings.Contains(err.Error(), name+" is ") {
					t.Errorf("%s = %s: named %v; %v", name, value, named, err)
				}
				if !named {
					decide(t, db, 3)
				}
				db.Close()
				alter(t, dsn, "RESET "+name)
			}
		})
	}
}

// hostile has all settings of the document at once that have no effect.
func hostile(t *testing.T, dsn string) {
	var changes []string
	for _, setting := range documented(t) {
		if setting[3] == "no effect" && known(t, dsn, setting[1]) {
			changes = append(changes, "SET "+setting[1]+" = "+setting[2])
		}
	}
	alter(t, dsn, changes...)
}

// plane makes the tables of the policy and of the history, reads the one and writes the other.
func plane(t *testing.T, db pgdb.DB, path string) (reports string) {
	t.Helper()
	ctx := context.Background()
	if err := errors.Join(policy.Migrate(ctx, db), history.Migrate(ctx, db)); err != nil {
		t.Fatal(err)
	}
	p := policy.New(db, policy.Settings{Refresh: -1, Health: health.New(ctx, nil, nil)})
	defer p.Close()
	if err := p.Refresh(ctx); err != nil {
		t.Error(err)
	}
	var mu sync.Mutex
	w, err := history.New(db, history.Settings{OnError: func(err error) {
		mu.Lock()
		reports += err.Error()
		mu.Unlock()
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i, path := range []string{"/a", path} {
		history.Add(w, &history.Record{Time: time.Now(), Key: fmt.Sprint(i), Outcome: history.Limited,
			Audit: settings.Audit{Level: settings.AuditDenied}, Path: path, Method: "GET",
			Host: "example.com"})
	}
	if err := w.Flush(ctx); err != nil {
		t.Error(err)
	}
	if _, err := history.Upkeep(ctx, db, time.Time{}); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return reports
}

// A database in LATIN1 has everything, and what it cannot store is refused with a sentence.
func TestLatin1(t *testing.T) {
	for name, open := range drivers.All {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := cluster.Open(t)
			latin := cluster.Query[string](t, admin, "SELECT current_database() || '_latin1'")
			cluster.Execute(t, admin,
				"CREATE DATABASE "+latin+" TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
			t.Cleanup(func() { cluster.Execute(t, admin, "DROP DATABASE "+latin+" WITH (FORCE)") })
			dsn := strings.Replace(admin, strings.TrimSuffix(latin, "_latin1"), latin, 1)
			db := open(t, dsn)
			defer db.Close()
			if reports := plane(t, db, "/\U0001F600"); !strings.Contains(reports, pg.EncodingHint) {
				t.Errorf("of a path: %q", reports)
			}
			if n := cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_audit"); n != 1 {
				t.Errorf("%d rows of the audit log", n)
			}
			store, err := postgres.New(db, postgres.Options{})
			if err != nil {
				t.Fatal(err)
			}
			limiter, err := ratelimit.NewLimiter(
				store, ratelimit.Limit{Prefix: "api", Algorithm: ratelimit.FixedWindow, Events: 2,
					Window: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			limiter.Timeout = 10 * time.Second
			if d, err := limiter.Take(context.Background(), "caf\u00e9", 1); err != nil || d.Remaining != 1 {
				t.Errorf("%v, %v", d, err)
			}
			if _, err := limiter.Take(context.Background(), "\U0001F600", 1); err == nil ||
				!strings.Contains(err.Error(), pg.EncodingHint) {
				t.Errorf("of a key: %v", err)
			}
		})
	}
}
