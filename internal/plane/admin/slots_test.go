package admin_test

import (
	"context"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// While requests run, a reset of their counter is refused and says what frees the slots, and forget leaves them: otherwise
// more would run than the limit. Slots of a process that is lost hold nothing.
func TestSlotsOfRequestsThatRunStay(t *testing.T) {
	ctx := context.Background()
	p := newPast(t, 0)
	held := func() (n int) {
		if err := p.conn.QueryRow(ctx, "SELECT coalesce(sum(cardinality(slots)), 0) FROM rate_limit_durable WHERE key = 'acme'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	p.exec("INSERT INTO rate_limit_processes (process, seen) VALUES (7, now() + interval '1 hour')")
	p.exec("INSERT INTO rate_limit_durable (prefix, key, slots, expires_at) VALUES ('files', 'acme', ARRAY[(7::bigint << 32) + 1, (7::bigint << 32) + 2], now() + interval '1 day')")
	if err := p.db.Reset(ctx, "files", "acme"); err == nil || !strings.Contains(err.Error(), "UPDATE rate_limit_processes SET seen = '-infinity' WHERE process IN (7)") {
		t.Errorf("a reset while requests run: %v", err)
	}
	f, err := p.db.Forget(ctx, &admin.Person{User: "acme"}, false, false)
	if err != nil || !strings.Contains(strings.Join(f.Notes, " "), "1 counters of rate_limit_durable stay") {
		t.Errorf("forget while requests run: %+v, %v", f, err)
	}
	if got := held(); got != 2 {
		t.Errorf("%d slots are left of 2 that are held", got)
	}
	p.exec("UPDATE rate_limit_processes SET seen = '-infinity' WHERE process IN (7)")
	if err := p.db.Reset(ctx, "files", "acme"); err != nil || held() != 0 {
		t.Errorf("a reset after the end of the process: %v, %d slots are left", err, held())
	}
}
