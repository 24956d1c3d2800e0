package command_test

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// commandsWithKey are commands that print rows about API keys, and commands with KEY as an argument. Some
// have the key where only a mistake of the user would put it.
//
//go:embed testdata/with_key.commands
var commandsWithKey string

// Only `keys create` and `keys rotate` print a key, once and on standard output. No other command prints a
// key, even if the user puts it in a wrong place, and no table contains it.
func TestKeyIsShownOnceAndNeverStored(t *testing.T) {
	s := newShell(t, schema.File)
	s.mustRun("users", "set", "acme", "tier=anonymous")
	created := s.run("keys", "create", "--user", "acme", "--name", "production")
	if created.err != nil {
		t.Fatal(created.err)
	}
	key := strings.TrimSuffix(created.stdout, "\n")
	if !policy.Check(key) {
		t.Fatalf("keys create prints %q, want a key", created.stdout)
	}
	if strings.Contains(created.stderr, key) {
		t.Errorf("standard error is %q, want it without the key", created.stderr)
	}
	var rotated struct {
		Key string `json:"key"`
	}
	err := json.Unmarshal([]byte(s.mustRun("keys", "rotate", "1", "--json")), &rotated)
	if err != nil || !policy.Check(rotated.Key) || rotated.Key == key {
		t.Fatalf("keys rotate prints the key %q, error %v; want another key", rotated.Key, err)
	}
	// The first row still has the digest of the key that keys create printed.
	id := cluster.Query[int64](t, s.dsn,
		"SELECT id FROM rate_limit_api_keys WHERE encode(digest, 'hex') = $1", policy.Digest(key))
	if id != 1 {
		t.Errorf("the digest is of the key with the id %d, want 1", id)
	}
	stored := s.allRows()
	if strings.Contains(stored, key) || strings.Contains(stored, rotated.Key) {
		t.Errorf("the database has\n%s\nwant no key in it", stored)
	}
	s.checkHidden(commandsWithKey, key, rotated.Key)
	if stored := s.allRows(); strings.Contains(stored, key) {
		t.Errorf("the database then has\n%s\nwant no key in it", stored)
	}
}

// An API key that another program created has another form. No command prints such a key either.
func TestExternalAPIKeyIsRedacted(t *testing.T) {
	s := newShell(t, schema.File)
	const key = "sk-live-0123456789"
	s.checkHidden(`explain --key KEY; explain --key KEY --json; get per-key KEY; reset per-key KEY;
		keys revoke KEY; explain --key-id KEY; audit -KEY`, key)
}

// checkHidden fails the test if one of the commands prints one of the keys. KEY stands for the first key.
func (s *shell) checkHidden(commands string, keys ...string) {
	s.t.Helper()
	for command := range strings.SplitSeq(strings.ReplaceAll(commands, "KEY", keys[0]), ";") {
		args := strings.Fields(command)
		out := s.run(args...)
		printed := fmt.Sprint(out.stdout, out.stderr, out.err)
		for _, key := range keys {
			if strings.Contains(printed, key) {
				s.t.Errorf("%q prints\n%s\nwant it without a key", args, printed)
			}
		}
	}
}
