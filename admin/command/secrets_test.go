package command_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// commandsWithKey returns commands that print rows about API keys, and commands with key as an argument. Some
// have the key where only a mistake of the user would put it.
func commandsWithKey(key string) [][]string {
	return [][]string{
		{"keys", "list"}, {"keys", "list", "--json"},
		{"users", "get", "acme"}, {"users", "get", "acme", "--json"},
		{"changes"}, {"changes", "--json"}, {"rules", "list"}, {"nodes"},
		{"explain", "--key", key}, {"explain", "--key", key, "--json"}, {"explain", key},
		{"explain", "--ip", key}, {"explain", "--path", key},
		{"get", "per-key", key}, {"reset", "per-key", key},
		{"rules", "enable", key}, {"rules", "set", "x", key}, {"rules", "set", "x", key + "=1"},
		{"rules", "set", "x", "per_hour=" + key},
		{"users", "get", key}, {"users", "unban", key}, {"ban", key}, {key},
		{"keys", "revoke", key}, {"keys", "create", "--user", key},
		{"audit", "--user", key}, {"audit", "--user", key, "--json"}, {"audit", "--outcome", key},
		{"audit", "--address", key}, {"audit", key}, {"audit", "--since", key},
		{"usage", key}, {"usage", key, "--json"}, {"usage", "acme", "--month", key},
		{"top", "-n", key}, {"top", "--since", "1h", "--prefix", key},
		{"replay", "--rule", key}, {"replay", "--rule", "x", key},
		{"replay", "--rule", "x", "per_hour=" + key}, {"upkeep", key},
		{"forget", key}, {"forget", "--ip", key}, {"forget", "--key-id", key},
		{"keys", "create", "--user", "acme", "--tier", key}, {"keys", "set", "1", key + "=1"},
		{"keys", "set", "1", "x/" + key + "=1"}, {"keys", "set", key, "tier="},
		{"tiers", "delete", key}, {"tiers", "rename", key, "x"}, {"users", "delete", key},
		{"keys", "list", "--" + key}, {"keys", "list", "-" + key}, {"keys", "list", "--=" + key},
		{"audit", "-n", key},
	}
}

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
	s.checkHidden(commandsWithKey(key), key, rotated.Key)
	if stored := s.allRows(); strings.Contains(stored, key) {
		t.Errorf("the database then has\n%s\nwant no key in it", stored)
	}
}

// An API key that another program created has another form. No command prints such a key either.
func TestExternalAPIKeyIsRedacted(t *testing.T) {
	s := newShell(t, schema.File)
	const key = "sk-live-0123456789"
	s.checkHidden([][]string{{"explain", "--key", key}, {"explain", "--key", key, "--json"},
		{"get", "per-key", key}, {"reset", "per-key", key}, {"keys", "revoke", key},
		{"explain", "--key-id", key}, {"audit", "-" + key}}, key)
}

// checkHidden fails the test if one of the commands prints one of the keys.
func (s *shell) checkHidden(commands [][]string, keys ...string) {
	s.t.Helper()
	for _, args := range commands {
		out := s.run(args...)
		printed := fmt.Sprint(out.stdout, out.stderr, out.err)
		for _, key := range keys {
			if strings.Contains(printed, key) {
				s.t.Errorf("%q prints\n%s\nwant it without a key", args, printed)
			}
		}
	}
}
