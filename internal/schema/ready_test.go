package schema_test

import (
	"errors"
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
	for _, when := range []string{"in an empty database", "after another process has just made tables"} {
		var text []byte
		if err := tx.QueryRow(t.Context(), schema.StateSQL).Scan(&text); err != nil {
			t.Fatal(err)
		}
		if state, err := schema.ParseState(text); err != nil || !errors.Is(state.Err(), schema.ErrMissing) {
			t.Errorf("%s: the state is %+v, %v, want ErrMissing", when, state, err)
		}
		s.Exec(schema.File)
	}
}
