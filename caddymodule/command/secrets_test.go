package command_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// everything returns the text of all rows of all tables in the database.
func (s *shell) everything() string {
	s.t.Helper()
	conn := cluster.Connect(s.t, s.dsn)
	defer conn.Close(context.Background())
	ctx := context.Background()
	result, err := conn.Query(ctx,
		"SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
	if err != nil {
		s.t.Fatal(err)
	}
	tables, err := pgx.CollectRows(result, pgx.RowTo[string])
	if err != nil || len(tables) < 11 {
		s.t.Fatalf("the tables are %q, error %v; want 11 or more", tables, err)
	}
	var all strings.Builder
	for _, table := range tables {
		var text string
		if err := conn.QueryRow(ctx,
			"SELECT coalesce(string_agg(to_jsonb(t)::text, E'\n'), '') FROM "+table+" t").
			Scan(&text); err != nil {
			s.t.Fatal(err)
		}
		all.WriteString(table + ": " + text + "\n")
	}
	return all.String()
}

// withKey returns commands that print API keys, or have key in the place of another argument.
func withKey(key string) [][]string {
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

func TestAKeyIsShownOnceAndNeverStored(t *testing.T) {
	s := newShell(t, schema.File)
	s.must("users", "set", "acme", "tier=anonymous")
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
	if err := json.Unmarshal([]byte(s.must("keys", "rotate", "1", "--json")), &rotated); err != nil ||
		!policy.Check(rotated.Key) || rotated.Key == key {
		t.Fatalf("keys rotate prints the key %q, error %v; want another key", rotated.Key, err)
	}
	if id := one[int64](s, "SELECT id FROM rate_limit_api_keys WHERE encode(digest, 'hex') = $1",
		policy.Digest(key)); id != 1 {
		t.Errorf("the key with its digest is %d, want 1", id)
	}
	stored := s.everything()
	if strings.Contains(stored, key) || strings.Contains(stored, rotated.Key) {
		t.Errorf("the database has\n%s\nwant no key in it", stored)
	}
	for _, args := range withKey(key) {
		out := s.run(args...)
		printed := out.stdout + out.stderr
		if out.err != nil {
			printed += out.err.Error()
		}
		if strings.Contains(printed, key) || strings.Contains(printed, rotated.Key) {
			t.Errorf("%q prints\n%s\nwant it without a key", args, printed)
		}
	}
	if stored := s.everything(); strings.Contains(stored, key) {
		t.Errorf("the database then has\n%s\nwant no key in it", stored)
	}
}

// A key that another program made has another form, and is a secret too.
func TestAForeignKeyIsNotRepeated(t *testing.T) {
	s := newShell(t, schema.File)
	const key = "sk-live-0123456789"
	for _, args := range [][]string{{"explain", "--key", key}, {"explain", "--key", key, "--json"},
		{"get", "per-key", key}, {"reset", "per-key", key}, {"keys", "revoke", key},
		{"explain", "--key-id", key}, {"audit", "-" + key}} {
		out := s.run(args...)
		text := out.stdout + out.stderr
		if out.err != nil {
			text += out.err.Error()
		}
		if strings.Contains(text, key) {
			t.Errorf("%q prints %q, want it without the key", args, text)
		}
	}
}
