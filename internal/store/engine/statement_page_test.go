package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// docs/generated/algorithms.md shows the statement that decides hits on a sliding window, as it runs.
func TestAlgorithmsPageShowsTheStatement(t *testing.T) {
	t.Parallel()
	s := newTestDB(t)
	s.exec(engine.TableSQL)
	db := &statementCapture{DB: s.openDB(""), seen: map[string]pgdb.Statement{},
		withoutPlannerSettings: map[string]bool{}}
	store := s.openEngineOn(db, engine.Options{DisableMigration: true, CleanupProbability: -1})
	hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "web", Events: 100, Window: time.Minute},
		Key: "ann", Cost: 1}}
	if err := store.Take(t.Context(), time.Minute, hits, make([]ratelimit.Decision, 1)); err != nil {
		t.Fatal(err)
	}
	shown := ""
	for sql := range db.seen {
		if isSortedTake(sql) {
			shown += "\n"
			for line := range strings.Lines(strings.ReplaceAll(sql, "\t", "  ") + "\n") {
				shown += "    " + wrapped(line)
			}
			shown += "\n"
		}
	}
	golden.CheckPart(t, "../../../docs/generated/algorithms.md", "go test ./internal/store/engine", shown)
}

// wrapped breaks a line of SQL that is too long for a page, after a comma.
func wrapped(line string) string {
	const most = 100
	if len(line) <= most {
		return line
	}
	at := strings.LastIndex(line[:most], ", ")
	return line[:at+1] + "\n        " + wrapped(line[at+2:])
}
