package admin_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// past is a database with a policy and an audit log that a test fills.
type past struct {
	t    testing.TB
	db   *admin.Database
	conn *pgx.Conn
	days int
}

// began is when the recorded requests begin: a Monday in the past.
var began = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// newPast has an audit log of so many days.
func newPast(t testing.TB, days int) *past {
	t.Helper()
	ctx := context.Background()
	dsn := cluster.Open(t, schema.File)
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	p := &past{t, db, conn, days}
	for day := range days {
		from := began.AddDate(0, 0, day)
		p.exec("CREATE TABLE IF NOT EXISTS rate_limit_audit_" + from.Format("20060102") + " PARTITION OF rate_limit_audit FOR VALUES FROM ('" +
			from.Format(time.DateOnly) + "') TO ('" + from.AddDate(0, 0, 1).Format(time.DateOnly) + "')")
	}
	return p
}

func (p *past) exec(sql string) {
	p.t.Helper()
	if _, err := p.conn.Exec(context.Background(), sql); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
}

// rule makes the rule r anew.
func (p *past) rule(settings ...string) {
	p.t.Helper()
	p.exec("DELETE FROM rate_limit_rules")
	if _, err := p.db.Set(context.Background(), admin.SetRule, "r", settings, false); err != nil {
		p.t.Fatalf("%q: %v", settings, err)
	}
}

// request is a row of the audit log. "" and 0 are NULL, but for the weight and the count, which
// are then 1.
type request struct {
	at               time.Time
	decision, prefix string
	key, user, tier  string
	keyID            int64
	cost, count      int64
	weight           float64
	also             []string
}

// record replaces the rows of the audit log.
func (p *past) record(requests ...request) {
	p.t.Helper()
	p.exec("TRUNCATE rate_limit_audit")
	optional := func(text string) any {
		if text == "" {
			return nil
		}
		return text
	}
	var rows [][]any
	for _, r := range requests {
		var keyID any
		if r.keyID != 0 {
			keyID = r.keyID
		}
		rows = append(rows, []any{
			r.at, r.decision, r.prefix, optional(r.key), optional(r.user), optional(r.tier), keyID, r.cost, max(r.count, 1), max(r.weight, 1), r.also, int64(1), "test",
		})
	}
	columns := []string{"time", "decision", "prefix", "key", "user_id", "tier", "key_id", "cost", "count", "weight", "also", "duration_us", "node"}
	if _, err := p.conn.CopyFrom(context.Background(), pgx.Identifier{"rate_limit_audit"}, columns, pgx.CopyFromRows(rows)); err != nil {
		p.t.Fatal(err)
	}
}

// replay replays the rule r.
func (p *past) replay(settings ...string) *admin.Replay {
	p.t.Helper()
	r, err := p.try(settings...)
	if err != nil {
		p.t.Fatalf("%q: %v", settings, err)
	}
	return r
}

func (p *past) try(settings ...string) (*admin.Replay, error) {
	return p.db.Replay(context.Background(), &admin.ReplayQuery{
		Period: admin.Period{From: began, Until: began.AddDate(0, 0, p.days)}, Rule: "r", Settings: settings, Most: 1000,
	})
}
