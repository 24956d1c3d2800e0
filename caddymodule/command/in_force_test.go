package command_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// proxiesApply makes the rows of these proxies apply each change of the policy as soon as it is committed,
// and live on. Other rows stay as they are.
const proxiesApply = `CREATE FUNCTION apply() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	UPDATE rate_limit_nodes SET seen = now(), report = json_build_object('applied',
		format('%s:%1$s:', pg_current_xact_id()::text::bigint + 1)) WHERE node LIKE 'proxy%';
	RETURN NULL;
END $$;
CREATE TRIGGER apply AFTER INSERT ON rate_limit_changes EXECUTE FUNCTION apply();`

// A command that changes the policy ends when all running proxies with a policy apply the change, and says so
// on standard error. Other commands, and those without an effect, say nothing.
func TestCommandsWaitUntilTheirChangeIsInForce(t *testing.T) {
	s := newShell(t, schema.File)
	expect := func(want string, args ...string) {
		t.Helper()
		out := s.run(args...)
		got := regexp.MustCompile(`\d\.\d s`).ReplaceAllString(out.stderr, "N s")
		if out.err != nil || got != want {
			t.Errorf("%q: error %v, standard error %q; want no error and %q", args, out.err, got, want)
		}
	}
	expect("", "rules", "set", "plan", "per_hour=7") // there are no proxies
	s.sql(`INSERT INTO rate_limit_nodes (node, report, seen, ended) VALUES
		('proxy1', '{"applied": "1:1:"}', now(), NULL),
		('ended', '{"applied": "1:1:"}', now(), now()),
		('silent', '{"applied": "1:1:"}', now() - interval '1 min', NULL),
		('without a policy', '{}', now(), NULL)`)
	s.sql(proxiesApply)
	const one = "In force at 1 proxy after N s.\n"
	for _, command := range []string{"rules set plan per_hour=8", "rules disable plan", "tiers set pro",
		"users set acme tier=pro", "users ban acme", "users unban acme", "ban 192.0.2.0/24",
		"unban 192.0.2.0/24", "users delete acme", "tiers rename pro plus --json",
		"policy apply -", "rules rename plan other", "rules delete other"} {
		s.stdin = "tiers: [{tier: basic}]\n"
		expect(one, strings.Fields(command)...)
	}
	s.sql("INSERT INTO rate_limit_nodes (node, report) VALUES ('proxy2', '{\"applied\": \"1:1:\"}')")
	expect("In force at 2 proxies after N s.\n", "tiers", "set", "gold", "rank=1")
	expect("", "tiers", "set", "gold", "rank=1")
	expect("", "policy", "apply", "-", "--dry-run")
	expect("", "tiers", "list")
	expect("", "nodes")

	// A role that may not read the registry does not wait.
	role := s.newRole()
	s.sql("GRANT SELECT, INSERT, UPDATE ON rate_limit_tiers TO " + role)
	s.sql("GRANT SELECT ON rate_limit_changes TO " + role)
	s.sql("GRANT EXECUTE ON FUNCTION rate_limit_tier, rate_limit_set, rate_limit_fault TO " + role)
	owner := s
	s = s.asRole(role)
	expect("", "tiers", "set", "silver")
	owner.sql("GRANT SELECT ON rate_limit_nodes TO " + role)
	expect("In force at 2 proxies after N s.\n", "tiers", "set", "silver", "rank=2")
	s = owner

	// These proxies never apply it. The command ends without an error all the same.
	s.sql(`INSERT INTO rate_limit_nodes (node, report) VALUES ('late', '{"applied": "1:1:"}'),
		('odd', '{"applied": "7:3:", "log": "x"}'),
		('restored', '{"applied": "9999999:9999999:", "log": 1}')`)
	expect("Not in force after N s at late, odd, restored (of 5): see caddy pg-ratelimit state\n",
		"tiers", "set", "bronze")
}
