package ratelimit_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// heap is how much memory is in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestShortKeysOfLongRequests: a key is often a part of a request's line. The
// store keeps the key, and not the line.
func TestShortKeysOfLongRequests(t *testing.T) {
	postgres := ratelimit.NewPostgres(&fakeDB{answer: func(ctx context.Context, statements []*ratelimit.Statement) error {
		if statements[0].Row == nil {
			return nil // a reset
		}
		return rows(grantedRow(1, 0, 5))(ctx, statements)
	}}, ratelimit.PostgresOptions{CleanupProbability: -1})
	for name, store := range map[string]ratelimit.Store{"memory": ratelimit.NewMemory(0, nil), "postgres": postgres} {
		before := heap()
		for i := range 200 {
			line := fmt.Sprintf("/k%d?%s", i, strings.Repeat("x", 500_000))
			key, _, _ := strings.Cut(line, "?")
			for range 2 {
				takeOne(t, store, fakeHits(key)[0])
			}
			if i%2 == 0 {
				if err := store.Reset(context.Background(), time.Second, fakeHits(key)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if held := heap() - before; held > 30<<20 {
			t.Errorf("%s: 200 short keys hold %d MB", name, held>>20)
		}
		store.Close()
	}
}
