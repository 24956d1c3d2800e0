package engine_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// After a reservation without an answer, another session of the process holds what running requests hold, and
// bills that wait charge what they end. No other process gets these units meanwhile, even if the database is
// slow.
func TestUnitsStayHeldWhileASessionIsReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a process is ten seconds old")
	}
	s := newTestDB(t)
	var slow atomic.Bool
	store := s.openEngineOn(&interceptDB{s.openDB(""),
		func(ctx context.Context, pipeline []*pgdb.Statement, send answerFunc) error {
			for _, one := range pipeline {
				if slow.Load() && strings.Contains(one.SQL, "INSERT INTO rate_limit_durable") {
					time.Sleep(300 * time.Millisecond)
				}
			}
			return send(ctx, pipeline)
		}}, engine.Options{CleanupProbability: -1})
	l := budget(1000)
	reserve(t, store, l, 600)
	ended, _ := reserve(t, store, l, 300)
	time.Sleep(11 * time.Second) // for ten seconds a process counts as alive by its name
	other := s.openEngine(engine.Options{CleanupProbability: -1, DisableRememberedRefusals: true})
	slow.Store(true)
	store.Ledger().Uncertain()
	store.Ledger().Settle(bill(1, l, 300, ended))
	passed := int64(0)
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		if _, d := reserve(t, other, l, 50); d.Allowed {
			passed++
		}
	}
	if passed > 2 {
		t.Errorf("%d requests for 50 passed, want at most 2: 900 of 1000 are used or held", passed)
	}
	awaitSettled(t, store)
	const live = "SELECT concat_ws(' ', count, held) FROM rate_limit_counters('b', true)"
	await.Within(t, 20*time.Second, "the holds", func() bool {
		return s.queryText(live) == fmt.Sprint("300 ", 600+50*passed)
	})
	check.Equal(t, "processes", s.queryText(`SELECT count(*) FROM rate_limit_processes
		WHERE seen > now() - interval '10 s'`), "2")
}
