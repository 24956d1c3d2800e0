package cluster

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
)

// exists tells whether the file or folder is there.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestStopKeepsTheDataAndRestartTheAddress(t *testing.T) {
	c := Private(t, Options{})
	dsn := c.DSN("postgres")
	Execute(t, dsn, "CREATE TABLE kept AS SELECT 42 AS n")

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
	if n := Query[string](t, dsn, "SELECT n::text FROM kept"); n != "42" {
		t.Fatalf("the table holds %s, want 42", n)
	}
}
