package policy_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// restoreCommands returns the commands of a dump that restores a database over itself.
func restoreCommands(t *testing.T, d *testDB) []string {
	t.Helper()
	out, err := exec.Command(cluster.Tool(t, "pg_dump"), "--clean", "--inserts", "-d", d.dsn).Output()
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	var command strings.Builder
	quoted, atomic := false, false // in the body of a function
	for line := range strings.Lines(string(out)) {
		isSQL := strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "--") && line[0] != '\\'
		if command.Len() == 0 && !isSQL {
			continue
		}
		command.WriteString(line)
		if (strings.Count(line, "$$")+strings.Count(line, "$_$"))%2 == 1 {
			quoted = !quoted
		}
		switch strings.TrimSpace(line) {
		case "BEGIN ATOMIC":
			atomic = true
		case "END;":
			atomic = false
		}
		if !quoted && !atomic && strings.HasSuffix(strings.TrimSpace(line), ";") {
			commands = append(commands, command.String())
			command.Reset()
		}
	}
	return commands
}

// kindOf returns what a command does, and the table into which it inserts.
func kindOf(command string) string {
	words := strings.Fields(command)
	if words[0] == "INSERT" {
		return words[2]
	}
	return words[0] + words[1]
}

// checkRefused checks that a blocked and a banned request are refused.
func checkRefused(t *testing.T, p *policy.Policy, when string) {
	t.Helper()
	for what, facts := range map[string]*policy.Facts{
		"blocked": {DefaultTier: "anonymous", Path: "/", Method: "PUT"},
		"banned": {DefaultTier: "anonymous", Path: "/", Method: "GET",
			Address: netip.MustParseAddr("192.0.2.7")},
	} {
		var v policy.Verdict
		if err := p.Evaluate(t.Context(), testTimeout, "", "", facts, &v); err != nil || !v.Refused() {
			t.Errorf("%s, after %s: got %+v and the error %v, want a refusal", what, when, v, err)
		}
	}
}

// While a backup is restored over the tables, no limited, blocked or banned request passes, and no proxy
// creates a table before the restore does. After the last of several commands of a kind, and every fifth, the
// test polls, looks up a key and starts another proxy.
func TestRestoreOpensNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it restores many times")
	}
	d := newTestDB(t)
	d.addUser("ann", "free")
	d.addUser("bob", "pro")
	d.exec("SELECT rate_limit_rule('plan', per_hour => 10); SELECT rate_limit_rule('closed', action => " +
		"'block', methods => '{PUT}')")
	d.exec("INSERT INTO rate_limit_bans (network) VALUES ('192.0.2.0/24')")
	commands := restoreCommands(t, d)
	if len(commands) < 100 {
		t.Fatalf("commands of the dump: got %d, want at least 100", len(commands))
	}
	applied := "" // the oid of the change log that the proxy reports
	p := d.newPolicy(policy.Settings{OnApplied: func(_, log string, _ []string) { applied = log }})
	refresh(t, p)
	checkAnn(t, p, "before", "ann free rule/plan/per_hour=10")
	conn := cluster.Connect(t, d.dsn)
	failures, unread := 0, 0
	old := d.queryInt("SELECT 'rate_limit_changes'::regclass::bigint")
	for n, command := range commands {
		if _, err := conn.Exec(t.Context(), command); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		if n+1 < len(commands) && kindOf(commands[n+1]) == kindOf(command) && n%5 > 0 {
			continue
		}
		if p.Refresh(t.Context()) != nil {
			failures++
		}
		checkAnn(t, p, "a key that was seen, after "+command, "ann free rule/plan/per_hour=10")
		if text, err := tryVerdictOf(p, "key of bob", ""); err == nil {
			check.Equal(t, "a key that was not seen, after "+command, text, "bob pro rule/plan/per_hour=10")
		}
		// Another proxy starts, unless the database has no functions: it then looks empty, and the proxy
		// would create the tables.
		if d.queryInt(`SELECT count(*) FROM pg_proc WHERE proname LIKE 'rate\_limit\_%'`) > 0 {
			other := d.openDB()
			_ = new(schema.Preparation).Try(t.Context(), other, true, time.Now(), func() {})
			other.Close()
		}
		checkRefused(t, p, command)
		if failures > 0 && d.pool.QueryRow(t.Context(), `SELECT count(*)
			FROM (SELECT $1::text::oid AS log) AS n
			WHERE log = 'rate_limit_changes'::regclass AND log <> $2 AND NOT `+schema.Whole,
			applied, old).Scan(&unread) == nil && unread != 0 {
			t.Errorf("after %s: got a report of applied changes of unread tables, want none", command)
		}
	}
	if failures == 0 {
		t.Error("failed polls: got none, want some")
	}
	refresh(t, p)
	check.Equal(t, "a key that was not seen, after the restore", verdictOf(t, p, "key of bob", ""),
		"bob pro rule/plan/per_hour=10")
	if d.queryInt("SELECT ($1::text::oid = 'rate_limit_changes'::regclass)::int", applied) != 1 {
		t.Errorf("the reported change log: got %s, want the restored one", applied)
	}
}
