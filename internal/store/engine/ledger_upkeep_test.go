package engine_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// slowDB is a database on which some statements never end.
type slowDB struct {
	fakeDB
	connections int
	slow        string // a part of the statements that never end

	mu         sync.Mutex
	background int           // the heartbeats and upkeeps that run
	most       int           // the largest value of background
	beatAt     time.Time     // the last heartbeat that has ended
	silence    time.Duration // the longest time between two heartbeats
}

func (d *slowDB) MaxConns() int { return d.connections }

func (d *slowDB) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	text := ""
	for _, s := range statements {
		text += s.SQL
	}
	beats := strings.Contains(text, "INSERT INTO rate_limit_nodes")
	if !beats && !strings.Contains(text, schema.NoticeUpkeep) && !strings.Contains(text,
		schema.LedgerUpkeepOf) {
		return d.fakeDB.Run(ctx, timeout, statements)
	}
	d.mu.Lock()
	d.background++
	d.most = max(d.most, d.background)
	d.mu.Unlock()
	var err error
	if strings.Contains(text, d.slow) {
		err = untilTimeout(ctx, timeout, func(ctx context.Context) error { return hang(ctx, statements) })
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.background--
	if beats && err == nil {
		d.silence = max(d.silence, time.Since(d.beatAt))
		d.beatAt = time.Now()
	}
	return err
}

// A slow statement of the upkeep silences no proxy for ten seconds, after which others take it for dead. What
// runs each second waits for no slow statement, and with two connections, decisions keep one of them.
func TestSlowUpkeepSilencesNoProxy(t *testing.T) {
	for slow, connections := range map[string][]int{schema.NoticeUpkeep: {2, 8}, schema.LedgerUpkeepOf: {2,
		8},
		"rate_limit_nodes": {2, 8}} {
		for _, n := range connections {
			synctest.Test(t, func(t *testing.T) {
				const minutes = 10
				db := &slowDB{connections: n, slow: slow, beatAt: time.Now()}
				store := openStore(t, db, engine.Options{CleanupProbability: -1},
					&registry.Node{Name: "n", Epoch: 1})
				store.Prepare()
				time.Sleep(minutes * time.Minute)
				db.mu.Lock()
				defer db.mu.Unlock()
				if db.silence >= 10*time.Second {
					t.Errorf("%s, %d connections: silent for %v, want less than 10s", slow, n, db.silence)
				}
				if db.most >= n {
					t.Errorf("%s, %d connections: the background takes %d", slow, n, db.most)
				}
				if _, ticks := db.count(); ticks < minutes*60/2 {
					t.Errorf("%s, %d connections: %d ticks in %d min, want one each second", slow, n, ticks,
						minutes)
				}
			})
		}
	}
}
