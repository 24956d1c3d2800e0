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
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// longTime is a timeout that no test reaches.
const longTime = time.Minute

// site has a database and the policies on it.
type site struct {
	t    testing.TB
	dsn  string
	pool *pgxpool.Pool

	health []*health.Health // of the policies

	mu       sync.Mutex
	now      time.Time // the time of the policies; zero is that of this machine
	reported []string
}

// newSite returns a site with the tables of the policy.
func newSite(t testing.TB) *site {
	t.Helper()
	return siteOn(t,
		cluster.Open(t, schema.Counters+schema.Policy,
			"INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1), ('pro', 2)"))
}

func siteOn(t testing.TB, dsn string) *site {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &site{t: t, dsn: dsn, pool: pool}
}

func (s *site) db() pgdb.DB {
	s.t.Helper()
	db, err := pgxdb.Open(s.dsn, pgxdb.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	return db
}

func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.pool.Exec(context.Background(), sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

func (s *site) number(sql string, args ...any) int64 {
	s.t.Helper()
	return cluster.Query[int64](s.t, s.dsn, sql, args...)
}

// begin opens a transaction on a connection of its own.
func (s *site) begin() pgx.Tx {
	s.t.Helper()
	tx, err := s.pool.Begin(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// user creates a user, and an API key with the name of the user.
func (s *site) user(user, tier string) {
	s.t.Helper()
	s.exec("INSERT INTO rate_limit_users (user_id, tier) VALUES ($1, $2)", user, tier)
	digest := sha256.Sum256([]byte("key of " + user))
	s.exec("INSERT INTO rate_limit_api_keys (digest, user_id) VALUES ($1, $2)", digest[:], user)
}

// policy returns a policy that polls only at calls of Refresh.
func (s *site) policy(settings policy.Settings) *policy.Policy {
	s.t.Helper()
	return s.policyOn(s.db(), settings)
}

func (s *site) policyOn(db pgdb.DB, settings policy.Settings) *policy.Policy {
	s.t.Helper()
	if settings.Refresh == 0 {
		settings.Refresh = -1
	}
	settings.Now = func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.now.IsZero() {
			return time.Now()
		}
		return s.now
	}
	settings.OnError = func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reported = append(s.reported, err.Error())
	}
	settings.Health = health.New(s.t.Context(), rand.Float64, func(ctx context.Context) error {
		return db.Run(ctx, []*pgdb.Statement{{SQL: "SELECT 'answers'"}})
	})
	s.health = append(s.health, settings.Health)
	p := policy.New(db, settings)
	s.t.Cleanup(func() { p.Close(); db.Close() })
	return p
}

// awaitAnswers waits until probes have ended the outages that the policies saw.
func (s *site) awaitAnswers() {
	s.t.Helper()
	await.Within(s.t, time.Minute, "the end of the outage", func() bool {
		return !slices.ContainsFunc(s.health, (*health.Health).Silent)
	})
}

// after advances the clock of the policies.
func (s *site) after(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now.IsZero() {
		s.now = time.Now()
	}
	s.now = s.now.Add(d)
}

// reports returns what the policies have reported so far.
func (s *site) reports() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.reported, "\n")
}

// refresh polls.
func refresh(t testing.TB, p *policy.Policy) {
	t.Helper()
	if err := p.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// decided returns a short text of the outcome of a GET request of an API key, or of a user.
func decided(t testing.TB, p *policy.Policy, key, user string) string {
	t.Helper()
	text, err := tryDecide(p, key, user)
	if err != nil {
		t.Fatalf("key %q, user %q: %v", key, user, err)
	}
	return text
}

func tryDecide(p *policy.Policy, key, user string) (string, error) {
	facts := policy.Facts{Tier: "anonymous", RejectUnknown: true, Method: "GET", Host: "api.example.com",
		Path: "/"}
	var o policy.Verdict
	if err := p.Evaluate(context.Background(), longTime, key, user, &facts, &o); err != nil {
		return "", err
	}
	return outcomeText(&o), nil
}

// outcomeText returns a short text of an outcome.
func outcomeText(o *policy.Verdict) string {
	text := o.User + " " + o.Tier
	if o.Refused() {
		return fmt.Sprint(text, " ", o.Status, " ", o.Reason)
	}
	for i := range o.Hits {
		text += fmt.Sprintf(" %s=%d", o.Hits[i].Limit.Prefix, o.Hits[i].Limit.Events)
	}
	return text
}

// same reports an error if two texts differ.
func same(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
