package main

import (
	"os"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// end ends the demo.
func (d *demo) end(t *testing.T) {
	t.Helper()
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil || d.stderr.Len() > 0 {
		t.Errorf("it ended with %v: %s", err, d.stderr.String())
	}
}

func TestAPolicyOfSomebodyElseStaysAsItIs(t *testing.T) {
	dsn := cluster.Open(t)
	start(t, t.TempDir(), dsn).end(t)
	cluster.Execute(t, dsn, "SELECT rate_limit_rule('mine', per_hour => 1)")
	cluster.Execute(t, dsn, "UPDATE rate_limit_users SET tier = 'enterprise'")
	d := start(t, t.TempDir(), dsn)
	if !strings.Contains(d.said, "Without a policy to try: the database has rules or users of its own") || strings.Contains(d.said, "ANN=") {
		t.Errorf("it says\n%s", d.said)
	}
	d.end(t)
	if moved := cluster.Query[int](t, dsn, "SELECT count(*) FROM rate_limit_users WHERE tier <> 'enterprise'"); moved > 0 {
		t.Errorf("it has changed %d users", moved)
	}
}
