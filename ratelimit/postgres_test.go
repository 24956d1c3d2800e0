package ratelimit_test

import (
	"context"
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
type clock struct {
	now  int64
	tick int64 // for those who want it to go on by itself
}

func (c *clock) read() int64 { return c.now }

// ticking reads the clock, which then goes on by a tick.
func (c *clock) ticking() int64 {
	c.now += c.tick
	return c.now - c.tick
}

func openPostgres(t testing.TB, o ratelimit.PostgresOptions) (*ratelimit.Postgres, *pgx.Conn) {
	t.Helper()
	dsn := cluster.Open(t)
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o.Report = func(err error) { t.Errorf("reported: %v", err) }
	store := ratelimit.NewPostgres(&together{DB: db}, o)
	t.Cleanup(store.Close)
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return store, conn
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
