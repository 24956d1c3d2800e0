package admin_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// A follower shows each row of the query once, the oldest first, also of a transaction that ends after
// others that began later, and that has written its rows in a part of its own.
func TestAFollowerShowsEachNewRowOnce(t *testing.T) {
	ctx := context.Background()
	p := newPast(t, 0)
	p.exec("SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date + i) FROM generate_series(-1, 1) AS i")
	insert := func(user, ago string) string {
		return fmt.Sprintf("INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, node, user_id) VALUES (now() - interval '%s', 1, 1, 'limited', 'web', 'edge', '%s')", ago, user)
	}
	p.exec(insert("a", "30 s") + ";" + insert("b", "20 s") + ";" + insert("c", "10 s") + ";" + insert("other", "1 s"))
	p.exec("UPDATE rate_limit_audit SET prefix = 'api' WHERE user_id = 'other'")
	now, err := p.db.Now(ctx)
	if err != nil {
		t.Fatal(err)
	}
	f := p.db.Follow(&admin.AuditQuery{Period: admin.Period{From: now.Add(-time.Hour), Until: now}, Prefix: "web", Most: 2})
	next := func(want string) {
		t.Helper()
		found, more, err := f.Next(ctx)
		var users []string
		for i := range found {
			users = append(users, *found[i].User)
		}
		if got := strings.Join(users, " "); err != nil || more || got != want {
			t.Errorf("it shows %q, %t, %v, want %q", got, more, err, want)
		}
	}
	next("b c")
	next("")
	p.exec(insert("d", "5 s"))
	next("d")
	late, err := pgx.ConnectConfig(ctx, p.conn.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close(ctx)
	begun, err := late.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := begun.Exec(ctx, "SELECT pg_current_xact_id(); SAVEPOINT part; "+insert("late", "3 s")+"; RELEASE part"); err != nil {
		t.Fatal(err)
	}
	p.exec(insert("e", "2 s"))
	next("e")
	p.exec(insert("f", "1 s") + ";" + insert("g", "0 s"))
	next("f g")
	if err := begun.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	next("late")
	next("")
	p.exec("INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, node, user_id) SELECT now(), 1, 1, 'limited', 'web', 'edge', i FROM generate_series(1, 1001) AS i")
	if found, more, err := f.Next(ctx); len(found) != admin.MostFollowed || !more || err != nil {
		t.Errorf("of 1001 new rows it shows %d, %t, %v", len(found), more, err)
	}
}
