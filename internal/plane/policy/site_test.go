package policy_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// testTimeout is a timeout that no test reaches.
const testTimeout = time.Minute

// testDB is a database with policies on it.
type testDB struct {
	t    testing.TB
	dsn  string
	pool *pgxpool.Pool

	health []*health.Health // the health of the policies

	mu       sync.Mutex
	now      time.Time // the clock of the policies; the zero time means this machine's clock
	reported []string
}

// newTestDB creates a database with the tables of the policy.
func newTestDB(t testing.TB) *testDB {
	t.Helper()
	return openTestDB(t,
		cluster.Open(t, schema.File,
			"INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1), ('pro', 2)"))
}

func openTestDB(t testing.TB, dsn string) *testDB {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &testDB{t: t, dsn: dsn, pool: pool}
}

func (d *testDB) openDB() pgdb.DB {
	d.t.Helper()
	db, err := pgxdb.Open(d.dsn, pgxdb.Options{})
	if err != nil {
		d.t.Fatal(err)
	}
	return db
}

func (d *testDB) exec(sql string, args ...any) {
	d.t.Helper()
	if err := cluster.Exec(context.Background(), d.pool, sql, args...); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
}

func (d *testDB) queryInt(sql string, args ...any) int64 {
	d.t.Helper()
	return cluster.Query[int64](d.t, d.dsn, sql, args...)
}

// begin starts a transaction on its own connection.
func (d *testDB) begin() pgx.Tx {
	d.t.Helper()
	tx, err := d.pool.Begin(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// addUser creates a user with the API key "key of NAME".
func (d *testDB) addUser(name, tier string) {
	d.t.Helper()
	d.exec("INSERT INTO rate_limit_users (user_id, tier) VALUES ($1, $2)", name, tier)
	digest := sha256.Sum256([]byte("key of " + name))
	d.exec("INSERT INTO rate_limit_api_keys (digest, user_id) VALUES ($1, $2)", digest[:], name)
}

// newPolicy returns a policy that polls only in Refresh.
func (d *testDB) newPolicy(settings policy.Settings) *policy.Policy {
	d.t.Helper()
	return d.newPolicyOn(d.openDB(), settings)
}

func (d *testDB) newPolicyOn(db pgdb.DB, settings policy.Settings) *policy.Policy {
	d.t.Helper()
	if settings.Refresh == 0 {
		settings.Refresh = -1
	}
	settings.Now = func() time.Time {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.now.IsZero() {
			return time.Now()
		}
		return d.now
	}
	settings.OnError = func(err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.reported = append(d.reported, err.Error())
	}
	settings.Health = health.New(d.t.Context(), rand.Float64,
		func(ctx context.Context, timeout time.Duration) error {
			return db.Run(ctx, timeout, []*pgdb.Statement{{SQL: "SELECT 'answers'"}})
		})
	d.health = append(d.health, settings.Health)
	p := policy.New(db, settings)
	d.t.Cleanup(func() { p.Close(); db.Close() })
	return p
}

// awaitRecovery waits until the health of all policies has recovered.
func (d *testDB) awaitRecovery() {
	d.t.Helper()
	await.Within(d.t, time.Minute, "the end of the outage", func() bool {
		return !slices.ContainsFunc(d.health, (*health.Health).Silent)
	})
}

// advance advances the clock of the policies.
func (d *testDB) advance(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.now.IsZero() {
		d.now = time.Now()
	}
	d.now = d.now.Add(by)
}

// reportedErrors returns the texts of all errors that the policies have reported.
func (d *testDB) reportedErrors() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.reported, "\n")
}

// refresh polls, and fails the test after an error.
func refresh(t testing.TB, p *policy.Policy) {
	t.Helper()
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// verdictOf returns a short text of the outcome of a GET request with an API key or a user.
func verdictOf(t testing.TB, p *policy.Policy, key, user string) string {
	t.Helper()
	text, err := tryVerdictOf(p, key, user)
	if err != nil {
		t.Fatalf("key %q, user %q: %v", key, user, err)
	}
	return text
}

// checkAnn fails the test unless want is the verdict on a request with the key of ann. when names the moment.
func checkAnn(t testing.TB, p *policy.Policy, when, want string) {
	t.Helper()
	check.Equal(t, when, verdictOf(t, p, "key of ann", ""), want)
}

func tryVerdictOf(p *policy.Policy, key, user string) (string, error) {
	facts := policy.Facts{DefaultTier: "anonymous", RejectUnknown: true, Method: "GET",
		Host: "api.example.com", Path: "/"}
	var v policy.Verdict
	if err := p.Evaluate(context.Background(), testTimeout, key, user, &facts, &v); err != nil {
		return "", err
	}
	return verdictText(&v), nil
}

// verdictText returns a short text of a verdict.
func verdictText(v *policy.Verdict) string {
	text := v.User + " " + v.Tier
	if v.Refused() {
		text = fmt.Sprint(text, " ", v.Status, " ", v.Reason)
		return strings.TrimSuffix(text+" by "+v.Level, " by ")
	}
	if v.Exempt {
		return text + " exempt"
	}
	for i, h := range v.Hits {
		text += fmt.Sprintf(" %s=%d", h.Limit.Prefix, h.Limit.Events)
		if level := v.Terms[i].Level; level != "" {
			text += "@" + level
			if h.Key != level {
				text += fmt.Sprintf("[%s]", h.Key)
			}
		}
	}
	return text
}
