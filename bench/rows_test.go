package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// TestRowsAreComparable: names differ, and a row is compared with rows of the same proxy that have as many connections.
func TestRowsAreComparable(t *testing.T) {
	rows := allRows()
	for _, r := range besideBefore(allRows()) { // with the same row of the version before
		if before := r.base; before.name != r.name+", before" || before.limit != r.limit || before.load.connections != r.load.connections {
			t.Errorf("%s is compared with %s", r.name, before.name)
		}
	}
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.name] {
			t.Errorf("%q occurs twice", r.name)
		}
		seen[r.name] = true
		for _, other := range []*row{r.base, r.memory, r.redis} {
			if other != nil && (!slices.Contains(rows, other) || other.traefik != r.traefik || other.load.connections != r.load.connections || other.load.rate != r.load.rate) {
				t.Errorf("%s is compared with %s", r.name, other.name)
			}
		}
		if r.redis != nil && (!r.redis.inRedis() || r.redis.base != r.base || r.memory != nil && r.memory.base != r.base) {
			t.Errorf("%s is compared with the peers %v and %v", r.name, r.memory, r.redis)
		}
		if want := strings.HasSuffix(r.name, "256 connections"); want != (r.load.connections == 256) {
			t.Errorf("%s has %d connections", r.name, r.load.connections)
		}
		if strings.Contains(r.name, "leased") != (r.limit != nil && r.limit.lease != "") {
			t.Errorf("%s: the limit is %+v", r.name, r.limit)
		}
	}
}

// TestPolicyRows fills the tables of a policy with fewer keys, and finds those that loads send.
func TestPolicyRows(t *testing.T) {
	ctx := t.Context()
	dsn := cluster.Open(t)
	query(ctx, dsn, schema.File, policyRowsOf(70000))
	live := must(policy.New(must(pgxdb.Open(dsn, pgxdb.Options{})), policy.Settings{DisableMigration: true}))
	defer live.Close()
	for n, want := range map[int]string{0: "user-0 free", 1: "user-1 pro", 65539: "user-65539 pro", 69999: "user-69999 free", 70000: " anonymous"} {
		var o policy.Verdict
		facts := policy.Facts{Tier: "anonymous", Path: "/"}
		if err := live.Evaluate(ctx, time.Minute, keyName(n), "", &facts, &o); err != nil || o.User+" "+o.Tier != want || (len(o.Hits) == 1) != (o.User != "") {
			t.Errorf("key %d: %+v, %v, want %s", n, o, err, want)
		}
	}
}
