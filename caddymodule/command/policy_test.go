package command_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// The way of a team that keeps its policy in git.
func TestThePolicyInAFile(t *testing.T) {
	s := newShell(t, schema.File)
	s.must("rules", "set", "plan", "per_hour=1000", "comment=for all")
	write := func(text string) {
		if err := os.WriteFile("policy.yaml", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := s.must("policy", "export")
	write(file)
	if got := s.must("policy", "diff", "policy.yaml"); got != "The policy is as the file has it.\n" {
		t.Errorf("diff of what was exported prints %q", got)
	}

	write(strings.NewReplacer("1000", "500", "for all", "less").Replace(file))
	s.must("rules", "set", "spare", "per_day=7")
	const changes = `KIND   NAME           OUTCOME  WHAT
rule   plan           changed  comment: for all → less
limit  plan/per_hour  changed  events: 1000 → 500

In the database and not in the file (--prune deletes them):
KIND   NAME
rule   spare
limit  spare/per_day
`
	diff := s.must("policy", "diff", "policy.yaml")
	command := regexp.MustCompile(`\nTo make exactly these changes: caddy pg-ratelimit (policy apply policy.yaml --expect [0-9a-f]{16})\n$`).FindStringSubmatch(diff)
	if !strings.HasPrefix(diff, changes) || command == nil {
		t.Fatalf("diff prints\n%s\nwant\n%s", diff, changes)
	}
	if got := s.must("policy", "apply", "policy.yaml", "--dry-run"); got != changes+"\nNothing is changed: this was a dry run.\n" {
		t.Errorf("the dry run prints\n%s", got)
	}
	s.must("rules", "set", "plan", "per_hour=900")
	s.fails([]string{"--expect", "has changed since that diff"}, strings.Fields(command[1])...)
	s.must("rules", "set", "plan", "per_hour=1000")
	if got := s.must(strings.Fields(command[1])...); got != changes {
		t.Errorf("apply prints\n%s", got)
	}
	if got := s.must("rules", "list"); !strings.Contains(got, "per_hour 500/1h") || !strings.Contains(got, "per_day 7/1d") {
		t.Errorf("then there are\n%s", got)
	}
	var plan admin.PolicyPlan
	if err := json.Unmarshal([]byte(s.must("policy", "apply", "policy.yaml", "--prune", "--json")), &plan); err != nil || len(plan.Changes) != 2 || plan.Changes[0].Name != "spare" || plan.Changes[0].Outcome != "deleted" {
		t.Errorf("%+v, %v", plan, err)
	}
	s.stdin = "rules:\n- name: plan\n  mode: of\n"
	s.fails([]string{"standard input:\n", `line 3: rule "plan": mode: "of": must be`}, "policy", "apply", "-")
	s.fails([]string{"--replay", "--dry-run"}, "policy", "apply", "policy.yaml", "--replay", "7d")
	s.fails([]string{"--replay", "7x"}, "policy", "apply", "policy.yaml", "--dry-run", "--replay", "7x")
	s.fails([]string{"reading the policy", "nothing.yaml"}, "policy", "apply", "nothing.yaml")
}

// Keys leave the database as digests, and only on request.
func TestAnExportHasNoKey(t *testing.T) {
	s := newShell(t, schema.File)
	s.must("users", "set", "acme", "tier=anonymous")
	key := strings.TrimSpace(s.must("keys", "create", "--user", "acme", "--name", "production"))
	digest := one[string](s, "SELECT encode(digest, 'hex') FROM rate_limit_api_keys")
	if got := s.must("policy", "export"); strings.Contains(got, digest) || strings.Contains(got, "acme") {
		t.Errorf("without --users the export has\n%s", got)
	}
	all := s.must("policy", "export", "--users")
	if !strings.Contains(all, digest) || strings.Contains(all, key) {
		t.Errorf("with --users the export has\n%s", all)
	}
	s.sql("TRUNCATE rate_limit_users CASCADE")
	s.stdin = all
	s.fails([]string{"users: must be left out without --users"}, "policy", "apply", "-")
	s.must("policy", "apply", "-", "--users")
	s.stdin = key
	if got := s.must("explain", "--key", "-"); !strings.Contains(got, "acme") {
		t.Errorf("the key is then of\n%s", got)
	}
	s.stdin = strings.ReplaceAll(all, digest, key)
	if out := s.run("policy", "apply", "-", "--users"); out.err == nil || strings.Contains(out.err.Error(), key[:12]) {
		t.Errorf("a key in place of a digest: %v", out.err)
	}
}

// A dry run shows the replay of each rule whose limits change.
func TestADryRunShowsAReplay(t *testing.T) {
	s := newShell(t, schema.File)
	s.must("rules", "set", "plan", "per_day=5")
	s.must("upkeep")
	s.sql(`INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, key, user_id, node) SELECT now() - interval '1 s', 1, 1, 'allowed', 'rule/plan', 'acme', 'acme', 'n' FROM generate_series(1, 5)`)
	s.stdin = "rules:\n- name: plan\n  limits: [{name: per_day, events: 2, per: 1d}]\n- name: new\n  limits: [{name: l, events: 2, per: 1d}]\n"
	got := s.must("policy", "apply", "-", "--dry-run", "--replay", "7d")
	for _, want := range []string{"events: 5 → 2", "this was a dry run", "rule    plan", "with these limits  5         2       3", "new: no replay: rule: \"new\": the audit log has no request"} {
		if !strings.Contains(got, want) {
			t.Errorf("the replay is\n%s\nwant %q", got, want)
		}
	}
	if got := s.must("rules", "list"); !strings.Contains(got, "per_day 5/1d") {
		t.Errorf("the dry run has made\n%s", got)
	}
}
