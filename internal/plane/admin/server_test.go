package admin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// TestEveryServerHasAllTables runs on all versions of Postgres, by make test-postgres-versions.
func TestEveryServerHasAllTables(t *testing.T) {
	ctx := context.Background()
	dsn := cluster.Open(t)
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	m, err := db.Migrate(ctx)
	check("Migrate", err)
	if want := (admin.Migration{Counters: "created", History: "created", Policy: "created"}); m != want {
		t.Errorf("Migrate returned %+v, want %+v", m, want)
	}
	_, err = db.Rules(ctx)
	check("Rules", err)
	_, err = db.Set(ctx, admin.SetRule, "plan", []string{"per_hour=3"}, false)
	check("SetRule", err)
	_, err = db.Ask(ctx, admin.KeysQuestion, "", 10)
	check("the keys", err)
	_, err = db.Explain(ctx, &admin.Request{Tier: "anonymous", Method: "GET", Path: "/"})
	check("Explain", err)
	_, err = db.Top(ctx, "", 20)
	check("Top", err)
	_, err = db.Changes(ctx, 1, 1)
	check("Changes", err)
	_, err = db.Bans(ctx)
	check("Bans", err)
	_, err = db.Nodes(ctx)
	check("Nodes", err)

	if _, err := conn.Exec(ctx, "INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) VALUES ('web', 'x', 3, now(), now() + interval '1 h')"); err != nil {
		t.Fatal(err)
	}
	counters, err := db.Counters(ctx, "web", "x")
	if err != nil || len(counters) != 1 || counters[0].Get("count") != int64(3) {
		t.Errorf("Counters returned %+v, %v", counters, err)
	}
	if top, err := db.TopCounters(ctx, "web", 1); err != nil || len(top) != 1 {
		t.Errorf("TopCounters returned %+v, %v", top, err)
	}
	if err := db.Reset(ctx, "web", "x"); err != nil {
		t.Error(err)
	}

	// The history needs no policy.
	if u, err := db.Upkeep(ctx); err != nil || len(u.Made) < 8 {
		t.Errorf("Upkeep returned %+v, %v", u, err)
	}
	for _, sql := range []string{
		"INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, key, user_id, address, node) VALUES (now(), 1, 1, 'allowed', 'web', 'x', 'acme', '192.0.2.1', 'n')",
		"INSERT INTO rate_limit_metrics (granularity, time, user_id, requests, last_request) VALUES ('day', date_trunc('day', now(), 'UTC'), 'acme', 3, now())",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	last := admin.Period{From: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}
	if rows, err := db.Audit(ctx, &admin.AuditQuery{Period: last, User: "acme", Most: 5}); err != nil || len(rows) != 1 || rows[0].Text("address") != "192.0.2.1" {
		t.Errorf("Audit returned %+v, %v", rows, err)
	}
	if senders, err := db.TopSince(ctx, "senders", last, "web", 5); err != nil || len(senders) != 1 || senders[0].Get("requests") != int64(1) {
		t.Errorf("TopSince returned %+v, %v", senders, err)
	}
	if u, err := db.UsageOf(ctx, "acme", admin.Period{From: last.From.AddDate(0, 0, -1), Until: last.Until.AddDate(0, 0, 1)}); err != nil || u.Total.Get("requests") != int64(3) {
		t.Errorf("UsageOf returned %+v, %v", u, err)
	}
}

// The database could not store these bytes, and others in their place would not be what was asked for.
func TestATextThatIsNotUTF8IsRefused(t *testing.T) {
	b := newPolicyBench(t)
	for _, text := range []string{"\xff", "a\x00b"} {
		_, err := b.db.Set(context.Background(), admin.SetRule, "r", []string{"per_hour=5", "comment=" + text}, false)
		const want = "must be a text in UTF-8 without a zero byte"
		if err == nil || !strings.HasPrefix(err.Error(), "comment: ") || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
