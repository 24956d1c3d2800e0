package cluster

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
)

func mustExec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func queryText(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	var text string
	if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// exists tells whether the file or folder is there.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestStopKeepsTheDataAndRestartTheAddress(t *testing.T) {
	c := Private(t, Options{})
	dsn := c.DSN("postgres")
	mustExec(t, Connect(t, dsn), "CREATE TABLE kept AS SELECT 42 AS n")

	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.Connect(t.Context(), dsn); err == nil {
		t.Fatal("a stopped server takes a connection")
	}
	if err := c.Stop(); err != nil {
		t.Fatalf("a second Stop: %v", err)
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.DSN("postgres") != dsn {
		t.Fatalf("after Restart the address is %s, was %s", c.DSN("postgres"), dsn)
	}
	if n := queryText(t, Connect(t, dsn), "SELECT n::text FROM kept"); n != "42" {
		t.Fatalf("the table holds %s, want 42", n)
	}
}
