package main

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// userOf is the user of an API key in a database; "" if there is none.
func userOf(t *testing.T, dsn, key string) string {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	digest := policy.Digest(key)
	var user string
	err = conn.QueryRow(ctx, "SELECT coalesce(max(user_id), '') FROM rate_limit_api_keys WHERE digest = $1 AND revoked_at IS NULL", digest[:]).Scan(&user)
	if err != nil {
		t.Fatal(err)
	}
	return user
}

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

func TestEachStartPrintsNewKeys(t *testing.T) {
	dsn := cluster.Open(t)
	printed := regexp.MustCompile(`(?m)^  (ANN|ACME)=(prl_\w{33})$`)
	var before [][]string
	for range 2 {
		d := start(t, t.TempDir(), dsn)
		keys := printed.FindAllStringSubmatch(d.said, -1)
		if len(keys) != 2 {
			t.Fatalf("it prints %d keys:\n%s", len(keys), d.said)
		}
		for _, key := range keys {
			if user := userOf(t, dsn, key[2]); user != strings.ToLower(key[1]) {
				t.Errorf("the key of %s is that of %q", key[1], user)
			}
		}
		for _, key := range before {
			if user := userOf(t, dsn, key[2]); user != "" {
				t.Errorf("the key of %s of the start before is valid", user)
			}
		}
		before = keys
		d.end(t)
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
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var moved int
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM rate_limit_users WHERE tier <> 'enterprise'").Scan(&moved); err != nil || moved > 0 {
		t.Errorf("it has changed %d users: %v", moved, err)
	}
}
