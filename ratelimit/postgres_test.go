package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

const second = int64(time.Second / time.Microsecond)

// clock is a time that a test sets.
type clock struct{ now int64 }

func (c *clock) read() int64 { return c.now }

func openPostgres(t testing.TB, o ratelimit.PostgresOptions) (*ratelimit.Postgres, *pgx.Conn) {
	t.Helper()
	dsn := cluster.Open(t)
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o.Report = func(err error) { t.Errorf("reported: %v", err) }
	store := ratelimit.NewPostgres(db, o)
	t.Cleanup(store.Close)
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return store, conn
}

// readRow reads what the table holds.
func readRow(t interface{ Fatal(...any) }, conn *pgx.Conn, h ratelimit.Hit) (ratelimit.Row, bool) {
	table := "rate_limit_ephemeral"
	if h.Limit.Durable {
		table = "rate_limit_durable"
	}
	var count, prev, remainder *int64
	var hits []time.Time
	var tokens *float64
	var start, refill *time.Time
	var expires time.Time
	err := conn.QueryRow(context.Background(), "SELECT count, prev_count, window_start, tokens, last_refill, remainder, hits, expires_at FROM "+table+
		" WHERE prefix = $1 AND key = $2", h.Limit.Prefix, h.Key).Scan(&count, &prev, &start, &tokens, &refill, &remainder, &hits, &expires)
	if err == pgx.ErrNoRows {
		return ratelimit.Row{}, false
	}
	if err != nil {
		t.Fatal(err)
	}
	r := ratelimit.Row{Expires: expires.UnixMicro()}
	times := []int64{}
	for _, hit := range hits {
		times = append(times, hit.UnixMicro())
	}
	r.Hits = fmt.Sprint(times)
	if remainder != nil {
		r.Remainder = *remainder
	}
	if count != nil {
		r.Count = *count
	}
	if prev != nil {
		r.PrevCount = *prev
	}
	if start != nil {
		r.Start = start.UnixMicro()
	}
	if tokens != nil {
		r.Tokens, r.HasTokens = *tokens, true
	}
	if refill != nil {
		r.Refill = refill.UnixMicro()
	}
	return r, true
}

func drawLimit(t *rapid.T, prefix string) *ratelimit.Limit {
	for {
		l := &ratelimit.Limit{
			Prefix:    prefix,
			Algorithm: ratelimit.Algorithm(rapid.IntRange(0, 4).Draw(t, "algorithm")),
			Events:    rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, ratelimit.MaxEvents)).Draw(t, "events"),
			Window:    time.Duration(rapid.OneOf(rapid.Int64Range(1000, 60*second), rapid.Int64Range(1000, int64(ratelimit.MaxWindow/1000))).Draw(t, "window")) * time.Microsecond,
			Durable:   rapid.Bool().Draw(t, "durable"),
		}
		switch {
		case l.Algorithm == ratelimit.SlidingLog:
			l.Events = 1 + l.Events%20
		case l.Algorithm == ratelimit.FixedWindow && rapid.Bool().Draw(t, "calendar"):
			l.Calendar = ratelimit.Calendar(rapid.IntRange(1, 4).Draw(t, "unit"))
			l.Zone = rapid.SampledFrom([]string{"", "UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Sao_Paulo"}).Draw(t, "zone")
			l.Window = 0
		case (l.Algorithm == ratelimit.TokenBucket || l.Algorithm == ratelimit.GCRA) && rapid.Bool().Draw(t, "hasBurst"):
			l.Burst = rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, ratelimit.MaxEvents)).Draw(t, "burst")
		}
		if l.Validate() == nil {
			return l
		}
	}
}

// span is a limit's window in microseconds, about a month on the calendar.
func span(l *ratelimit.Limit) int64 {
	if l.Calendar != ratelimit.NoCalendar {
		return 30 * 24 * 3600 * second
	}
	return l.Window.Microseconds()
}

// TestStepsEqual runs random schedules against the SQL statements and against
// the Go steps: every decision and every row must be equal.
func TestStepsEqual(t *testing.T) {
	c := &clock{}
	store, conn := openPostgres(t, ratelimit.PostgresOptions{Now: c.read, CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
	ctx := context.Background()
	schedule := 0
	rapid.Check(t, func(t *rapid.T) {
		schedule++
		memory := ratelimit.NewMemory(0, c.read)
		memory.KeepExpired()
		c.now = 1_700_000_000 * second
		limits := []*ratelimit.Limit{drawLimit(t, "a"), drawLimit(t, "b")}
		for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable"} {
			if schedule > 1 {
				if _, err := conn.Exec(ctx, "DELETE FROM "+table); err != nil {
					t.Fatal(err)
				}
			}
		}
		for step := rapid.IntRange(1, 12).Draw(t, "steps"); step > 0; step-- {
			l := limits[rapid.IntRange(0, 1).Draw(t, "limit")]
			w := span(l)
			c.now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(-5*second, 5*second), rapid.Int64Range(0, 3*w),
				rapid.Just(w), rapid.Just(w-1), rapid.Just(2*w)).Draw(t, "advance")
			if c.now < 0 || c.now > 5_000_000_000*second {
				c.now = 1_700_000_000 * second
			}
			h := ratelimit.Hit{Limit: l, Key: rapid.SampledFrom([]string{"k", "l"}).Draw(t, "key"),
				Cost: rapid.OneOf(rapid.Int64Range(-3, 8), rapid.Int64Range(1, l.Capacity())).Draw(t, "cost")}
			want, got := make([]ratelimit.Decision, 1), make([]ratelimit.Decision, 1)
			if err := memory.Take(ctx, time.Second, []ratelimit.Hit{h}, want); err != nil {
				t.Fatal(err)
			}
			if err := store.Take(ctx, 10*time.Second, []ratelimit.Hit{h}, got); err != nil {
				t.Fatalf("%+v: %v", l, err)
			}
			want[0].Source = got[0].Source
			if want[0] != got[0] {
				t.Fatalf("%+v at %d, cost %d:\n  Go %+v\n SQL %+v", *l, c.now, h.Cost, want[0], got[0])
			}
			wantRow, wantOK := memory.RowOf(h)
			gotRow, gotOK := readRow(t, conn, h)
			if wantOK && (wantRow != gotRow || wantOK != gotOK) {
				t.Fatalf("%+v at %d, cost %d: row\n  Go %+v\n SQL %+v", *l, c.now, h.Cost, wantRow, gotRow)
			}
		}
	})
}
