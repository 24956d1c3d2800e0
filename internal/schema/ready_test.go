package schema_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// Tables that another process has just created do not count as a restore. The snapshot of the query is older
// than these tables, but to_regclass finds them, without their keys.
func TestConcurrentMigrationIsNoRestore(t *testing.T) {
	s := sqltest.Open(t)
	reader := cluster.Connect(t, s.DSN)
	tx, err := reader.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	// isRestoring queries in the snapshot of the first call.
	isRestoring := func() (restoring int) {
		var counters, policy *int
		if err := tx.QueryRow(t.Context(), schema.Ready).Scan(&counters, &policy, &restoring); err != nil {
			t.Fatal(err)
		}
		return restoring
	}
	if isRestoring() != 0 {
		t.Error("an empty database counts as a restore")
	}
	s.Exec(schema.File)
	if isRestoring() != 0 {
		t.Error("tables that another process has just made count as a restore")
	}
}

// RestoredInPart tests whether the first function of the policy exists. A restore creates functions in the
// order of their names, so a proxy that starts during a restore finds this function, and creates no tables.
func TestRestoreIsDetectedByFirstFunction(t *testing.T) {
	var names []string
	functions := regexp.MustCompile(`FUNCTION (rate_limit_[a-z_]+)\(`)
	for _, found := range functions.FindAllStringSubmatch(schema.Policy, -1) {
		names = append(names, found[1])
	}
	first := slices.Min(names)
	if query := schema.RestoredInPart; !strings.Contains(query, "'"+first+"'") {
		t.Errorf("RestoredInPart does not query %s, the first function of the policy", first)
	}
}

// A registry that lacks a column that this program writes is not up to date, and the error of its migration
// names the column.
func TestOlderRegistryIsNotReady(t *testing.T) {
	s := sqltest.New(t)
	s.Expect(schema.NodesReady, "1")
	s.Exec("ALTER TABLE rate_limit_nodes RENAME report TO region")
	s.Expect(schema.NodesReady, "0")
	if err := s.Try(schema.Nodes); err == nil || !strings.Contains(err.Error(), `has no column "report"`) {
		t.Errorf("the migration of an older registry ended with %v, want the column that it lacks", err)
	}
}
