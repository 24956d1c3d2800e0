package schema_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// TestTablesOfAnotherProcessAreNoRestore if that process makes them while a query looks for
// them. The snapshot of the query is older than the tables, but to_regclass finds them.
func TestTablesOfAnotherProcessAreNoRestore(t *testing.T) {
	s := open(t)
	reader := cluster.Connect(t, s.dsn)
	tx, err := reader.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	// looks returns what a proxy finds in the snapshot of the first call.
	looks := func() (restoring int) {
		var counters, policy *int
		if err := tx.QueryRow(t.Context(), schema.Ready).Scan(&counters, &policy, &restoring); err != nil {
			t.Fatal(err)
		}
		return restoring
	}
	if looks() != 0 {
		t.Error("an empty database is restored")
	}
	s.exec(schema.File)
	if looks() != 0 {
		t.Error("a database whose tables another process has just made is restored")
	}
}

// A restore makes functions in the order of their names. A proxy that starts then finds the first
// one, and makes no tables.
func TestARestoreIsFoundByItsFirstFunction(t *testing.T) {
	var names []string
	for _, found := range regexp.MustCompile(`FUNCTION (rate_limit_[a-z_]+)\(`).FindAllStringSubmatch(
		schema.Policy, -1) {
		names = append(names, found[1])
	}
	first := slices.Min(names)
	if query := schema.RestoredInPart; !strings.Contains(query, "'"+first+"'") {
		t.Errorf("the first function of the policy is %s, which RestoredInPart does not look for", first)
	}
}
