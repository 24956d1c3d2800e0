package policy_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// dump returns the commands that restore the database of a site over itself, one by one.
func dump(t *testing.T, s *site) []string {
	t.Helper()
	out, err := exec.Command(cluster.Tool(t, "pg_dump"), "--clean", "--inserts", "-d", s.dsn).Output()
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	var command strings.Builder
	quoted, atomic := false, false // in the body of a function
	for line := range strings.Lines(string(out)) {
		if command.Len() == 0 &&
			(strings.HasPrefix(line, "--") || strings.HasPrefix(line, `\`) || strings.TrimSpace(line) == "") {
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

// closed reports an error for requests that pass although a rule blocks them or a ban refuses them.
func closed(t *testing.T, p *policy.Policy, when string) {
	t.Helper()
	for what, facts := range map[string]*policy.Facts{
		"blocked": {Tier: "anonymous", Path: "/", Method: "PUT"},
		"banned":  {Tier: "anonymous", Path: "/", Method: "GET", Address: netip.MustParseAddr("192.0.2.7")},
	} {
		var o policy.Verdict
		if err := p.Evaluate(t.Context(), longTime, "", "", facts, &o); err != nil || !o.Refused() {
			t.Errorf("%s, after %s: got %+v and the error %v, want a refusal", what, when, o, err)
		}
	}
}

// A backup is restored over the tables, command by command, with a poll, a look-up and the start of another
// proxy after each command. No request that is limited, blocked or banned passes, and no proxy creates a
// table that the restore would create.
func TestARestoreOpensNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it restores many times")
	}
	s := newSite(t)
	s.user("ann", "free")
	s.user("bob", "pro")
	s.exec("SELECT rate_limit_rule('plan', per_hour => 10); SELECT rate_limit_rule('closed', action => " +
		"'block', methods => '{PUT}')")
	s.exec("INSERT INTO rate_limit_bans (network) VALUES ('192.0.2.0/24')")
	commands := dump(t, s)
	if len(commands) < 100 {
		t.Fatalf("got %d commands, want a dump of all tables", len(commands))
	}
	applied := "" // the log of changes that the proxy reports as applied
	p := s.policy(policy.Settings{OnApplied: func(_ int64, log string, _ []string) { applied = log }})
	refresh(t, p)
	same(t, "before", decided(t, p, "key of ann", ""), "ann free rule/plan/per_hour=10")
	conn := cluster.Connect(t, s.dsn)
	kept, wrong := 0, 0
	old := s.number("SELECT 'rate_limit_changes'::regclass::bigint")
	for _, command := range commands {
		if _, err := conn.Exec(t.Context(), command); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		if p.Refresh(t.Context()) != nil {
			kept++
		}
		same(t, "a key that was seen, after "+command, decided(t, p, "key of ann", ""),
			"ann free rule/plan/per_hour=10")
		if text, err := tryDecide(p, "key of bob", ""); err == nil {
			same(t, "a key that was not seen, after "+command, text, "bob pro rule/plan/per_hour=10")
		}
		// A proxy starts. It cannot tell a moment without any function from an empty database.
		if s.number(`SELECT count(*) FROM pg_proc WHERE proname LIKE 'rate\_limit\_%'`) > 0 {
			other := s.db()
			_ = policy.Migrate(t.Context(), other)
			other.Close()
		}
		closed(t, p, command)
		if kept > 0 && s.pool.QueryRow(t.Context(), `SELECT count(*) FROM (SELECT $1::text::oid AS log) AS n
			WHERE log = 'rate_limit_changes'::regclass AND log <> $2 AND NOT `+schema.PolicyWhole,
			applied, old).Scan(&wrong) == nil && wrong != 0 {
			t.Errorf("after %s: the proxy reports the changes of tables that it has not read", command)
		}
	}
	if kept == 0 {
		t.Error("got no poll that failed, want some")
	}
	refresh(t, p)
	same(t, "a key that was not seen, after the restore", decided(t, p, "key of bob", ""),
		"bob pro rule/plan/per_hour=10")
	if s.number("SELECT ($1::text::oid = 'rate_limit_changes'::regclass)::int", applied) != 1 {
		t.Error("the proxy does not report that it has read the tables")
	}
}
