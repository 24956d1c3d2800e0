package command_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// With a configuration that has the counters, the policy and the history in several databases, each command
// uses the one that has what it shows, or says what it cannot show.
func TestCommandsUseTheDatabaseThatHasIt(t *testing.T) {
	s := newShell(t)
	counters, history := cluster.Open(t), cluster.Open(t)
	s.write("Caddyfile", "{\n\tpg_ratelimit {\n\t\tdsn "+counters+"\n\t\thistory "+
		"{\n\t\t\tdsn "+history+"\n\t\t}\n\t}\n}\n:8080 {\n\tpg_ratelimit {\n\t\tpolicy "+
		"{\n\t\t\tdsn "+s.dsn+"\n\t\t}\n\t}\n}\n")
	run := func(args ...string) string {
		t.Helper()
		out := s.caddy(append([]string{"pg-ratelimit"}, args...)...)
		if out.err != nil {
			t.Fatalf("%q: %v", args, out.err)
		}
		return out.stdout
	}
	if out := run("migrate"); strings.Count(out, "created") != 3 {
		t.Errorf("migrate prints %s", out)
	}
	run("rules", "set", "plan", "per_hour=7", "algorithm=fixed_window")
	cluster.Execute(t, counters, `INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start,
		expires_at) VALUES ('rule/plan/per_hour', 'ann', 3, now(), now() + interval '1 h'),
		('web', 'x', 2, now(), now() + interval '1 h');
		INSERT INTO rate_limit_nodes (node, epoch) VALUES ('both', 1), ('here', 2)`)
	s.sql("INSERT INTO rate_limit_nodes (node, epoch, applied_seq, problems) VALUES ('both', 1, 1, '{rule " +
		"x}'), ('there', 3, 1, '{}')")
	cluster.Execute(t, history, "SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date); "+
		"INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, user_id, node) VALUES "+
		"(now(), 1, 100, 'allowed', 'rule/plan', 'ann', 'caddy')")
	for _, c := range []struct {
		command string
		wants   []string
	}{
		{"rules list", []string{"per_hour 7/1h"}},
		{"explain --user ann --path /", []string{"fixed_window  1     4     "}},
		{"get rule/plan/per_hour ann", []string{"ann", "3"}},
		{"top --prefix web", []string{"web"}},
		{"audit", []string{"rule/plan", "ann"}},
		{"top --since 1h", []string{"rule/plan"}},
		{"nodes", []string{"both", "here", "there", "rule x"}},
	} {
		out := run(strings.Fields(c.command)...)
		for _, want := range c.wants {
			if !strings.Contains(out, want) {
				t.Errorf("%s prints %s\nwant %s", c.command, out, want)
			}
		}
	}
	for command, want := range map[string]string{
		"top":               "the policy is on another server than the counters",
		"forget --user ann": "in several databases: run this command for each, with --dsn",
	} {
		out := s.caddy(append([]string{"pg-ratelimit"}, strings.Fields(command)...)...)
		if out.err == nil || !strings.Contains(out.err.Error(), want) {
			t.Errorf("%s: %v, want %s", command, out.err, want)
		}
	}
}
