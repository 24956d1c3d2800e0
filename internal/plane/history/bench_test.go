package history_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// noDB is a database that takes everything at once.
type noDB struct{}

func (noDB) Run(_ context.Context, statements []*postgres.Statement) error {
	for _, s := range statements {
		s.Err = nil
	}
	return nil
}

func (noDB) Exec(context.Context, string) error { return nil }
func (noDB) Close()                             {}

// BenchmarkAdd is what a request pays for its record. The writer works beside it.
func BenchmarkAdd(b *testing.B) {
	for _, c := range []struct {
		name     string
		decision history.OutcomeKind
		level    history.Level
		keys     int
	}{
		{"allowed,off", history.Allowed, history.AuditOff, 100},
		{"allowed,all", history.Allowed, history.AuditAll, 100},
		{"denied,1_key", history.Limited, history.AuditDenied, 1},
		{"denied,100_keys", history.Limited, history.AuditDenied, 100},
		{"denied,10000_keys", history.Limited, history.AuditDenied, 10000},
	} {
		b.Run(c.name, func(b *testing.B) {
			w, err := history.New(noDB{}, history.Settings{Node: "n1", DisableMigration: true})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			w.Prepare()
			records := make([]history.Record, c.keys)
			for i := range records {
				records[i] = history.Record{
					Outcome: c.decision, Prefix: "api", Key: fmt.Sprintf("user-%d", i), User: fmt.Sprintf("user-%d", i), Tier: "pro",
					Address: netip.MustParseAddr("192.0.2.7"), Host: "api.example.com", Method: "GET", Path: "/v1/things/17", Route: "things",
					Cost: 1, Quota: 100, Remaining: 17, Duration: 300 * time.Microsecond, Audit: history.Audit{Level: c.level},
				}
				if c.decision == history.Limited {
					records[i].Status, records[i].RetryAfter = 429, time.Second
				}
			}
			var at atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				i := int(at.Add(31))
				for pb.Next() {
					i++
					r := records[i%len(records)]
					r.Time = time.Now()
					history.Add(w, &r)
				}
			})
		})
	}
}
