package engine_test

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// seenSQL makes triggers that record the value of synchronous_commit at the commit.
//
//go:embed testdata/seen.sql
var seenSQL string

// A commit waits for the disk if one of the charged limits has SynchronousCommit, even if the statements of
// the other limits come later in the transaction. The release of a slot always waits for the disk, and for a
// standby as well if its limit has SynchronousCommit.
func TestOneSynchronousCommitMakesTransactionWait(t *testing.T) {
	s := newTestDB(t)
	s.exec(engine.TableSQL + seenSQL)
	store := s.openEngine(engine.Options{
		CleanupProbability: -1, DisableRememberedRefusals: true, DisableMigration: true})
	for i, test := range []struct{ limits, want string }{ // want is synchronous_commit of each charge
		{"fixed_window durable", "off"},
		{"fixed_window sync", "on"},
		{"fixed_window durable, token_bucket durable", "off off"},
		{"fixed_window durable, token_bucket sync", "on on"},
		{"fixed_window sync, token_bucket durable", "on on"},
		{"fixed_window sync, fixed_window durable, gcra ephemeral", "on on on"},
		{"sliding_window ephemeral, sliding_log durable", "off off"},
	} {
		var hits []ratelimit.Hit
		for text := range strings.SplitSeq(test.limits, ", ") {
			algorithm, table, _ := strings.Cut(text, " ")
			h := hitOn("", 1, table != "ephemeral")
			h.Limit.SynchronousCommit = table == "sync"
			h.Limit.Algorithm, _ = ratelimit.ParseAlgorithm(algorithm)
			hits = append(hits, h)
		}
		for round := range 3 { // the second request is refused, so the third one peeks before it takes
			var names []string
			for j := range hits {
				prefix := fmt.Sprint(i, "/", j, "/", round/2)
				hits[j].Limit.Prefix = prefix
				names = append(names, "'"+prefix+"'")
			}
			s.exec("TRUNCATE seen")
			if allowed := takeAll(t, store, hits...); allowed != (round != 1) {
				t.Fatalf("test %d, round %d: allowed %v, want %v", i, round, allowed, round != 1)
			}
			got := s.queryText("SELECT coalesce(string_agg(setting, ' '), '') FROM seen WHERE prefix IN (" +
				strings.Join(names, ", ") + ")")
			if round != 1 && got != test.want {
				t.Errorf("test %d, round %d: synchronous_commit is %s, want %s", i, round, got, test.want)
			}
		}
	}
	for release, sync := range map[string]bool{"local": false, "on": true} {
		l := conformance.InFlight("flight", 3)
		l.Durable, l.SynchronousCommit = true, sync
		slots := takeSlots(t, store, l, 1, nil)
		s.exec("TRUNCATE seen")
		slots[0].Release()
		s.awaitText("SELECT coalesce(max(setting), '') FROM seen", release)
	}
}
