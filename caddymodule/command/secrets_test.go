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
		s.t.Fatalf("tables %q, %v", tables, err)
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

func TestAKeyIsShownOnceAndNeverStored(t *testing.T) {
	s := newShell(t, schema.File)
	s.must("users", "set", "acme", "tier=anonymous")
	created := s.run("keys", "create", "--user", "acme", "--name", "production")
	if created.err != nil {
		t.Fatal(created.err)
	}
	key := strings.TrimSuffix(created.stdout, "\n")
	if !policy.Check(key) {
		t.Fatalf("%q is not a key", created.stdout)
	}
	if strings.Contains(created.stderr, key) {
		t.Errorf("standard error has the key: %q", created.stderr)
	}
	var rotated struct {
		Key string `json:"key"`
	}
	if err := json.Unmarshal([]byte(s.must("keys", "rotate", "1", "--json")), &rotated); err != nil ||
		!policy.Check(rotated.Key) || rotated.Key == key {
		t.Fatalf("rotated to %q, %v", rotated.Key, err)
	}
	if id := one[int64](s, "SELECT id FROM rate_limit_api_keys WHERE encode(digest, 'hex') = $1",
		policy.Digest(key)); id != 1 {
		t.Errorf("the key's digest is of the key %d, want 1", id)
	}
	printed := ""
	for _, args := range [][]string{
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
	} {
		out := s.run(args...)
		printed += out.stdout + out.stderr
		if out.err != nil {
			printed += out.err.Error()
		}
	}
	for _, k := range []string{key, rotated.Key} {
		if strings.Contains(printed, k) {
			t.Error("a key was printed again")
		}
		if strings.Contains(s.everything(), k) {
			t.Error("a key is in the database")
		}
	}
}

// A key that another program made has another form, and is a secret too.
func TestAForeignKeyIsNotRepeated(t *testing.T) {
	s := newShell(t, schema.File)
	const key = "sk-live-0123456789"
	for _, args := range [][]string{{"explain", "--key", key}, {"explain", "--key", key, "--json"},
		{"get", "per-key", key}, {"reset", "per-key", key}, {"keys", "revoke", key}} {
		out := s.run(args...)
		text := out.stdout + out.stderr
		if out.err != nil {
			text += out.err.Error()
		}
		if strings.Contains(text, key) {
			t.Errorf("%q prints the key: %s", args, text)
		}
	}
}
