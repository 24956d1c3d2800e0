package migrate_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/admin/migrate"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// Steps run outside of a transaction, as CREATE INDEX CONCURRENTLY must, begin again after an interruption
// that left an invalid index, and do nothing when they are done.
func TestStepsAreRepeatedUntilDone(t *testing.T) {
	s := sqltest.New(t)
	file := schema.NumberedFile{Number: 99, Name: "0099_index.steps.sql",
		Done: "EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('of_comments') AND indisvalid)",
		SQL: "DROP INDEX CONCURRENTLY IF EXISTS of_comments;\n--;\n" +
			"CREATE INDEX CONCURRENTLY of_comments ON rate_limit_users (comment);\n--;\n"}
	index := func() string {
		t.Helper()
		if err := migrate.TakeSteps(t.Context(), s.Conn, file); err != nil {
			t.Fatal(err)
		}
		s.Expect("SELECT indisvalid FROM pg_index WHERE indexrelid = 'of_comments'::regclass", "t")
		return s.Query("SELECT 'of_comments'::regclass::oid")
	}
	first := index()
	check.Equal(t, "the index after steps that are done", index(), first)
	s.Exec("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'of_comments'::regclass")
	if again := index(); again == first {
		t.Error("an invalid index was kept")
	}
	file.SQL = "SELECT 1/0;\n--;\n"
	s.Exec("DROP INDEX of_comments")
	if err := migrate.TakeSteps(t.Context(), s.Conn, file); err == nil ||
		err.Error() != "0099_index.steps.sql: ERROR: division by zero (SQLSTATE 22012)" {
		t.Errorf("steps that fail ended with %v, want the name of their file", err)
	}
}
