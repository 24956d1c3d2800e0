package schema_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// What no constraint can see is checked too, and an error leaves nothing behind. That of a constraint
// names the argument first, and has no statement of the function.
func TestRuleFunctionRefuses(t *testing.T) {
	s := newSite(t)
	for sql, want := range map[string]string{
		"SELECT rate_limit_rule('r', per_hour => 1, tiers => '{fre,pro}')":                            "tiers: 'fre': must be in rate_limit_tiers, which has 'anonymous', 'free', 'pro'",
		"SELECT rate_limit_rule('r')":                                                                 "missing: a rule that limits must have one or more of them",
		"SELECT rate_limit_rule('r', per_hour => 1, tiers => '{}')":                                   "tiers: []: must be null or names of tiers",
		"SELECT rate_limit_rule('r', per_hour => -1)":                                                 "per_hour: -1: must be null or 0 to 9007199254740992",
		"SELECT rate_limit_rule('r', per_hour => 1, retry_after => '-1 s')":                           `retry_after: "-00:00:01": must be 0 to 36525 days without months`,
		"SELECT rate_limit_rule('r', in_flight => 1, burst => 5)":                                     "burst: 5: must be of a limit with a window",
		"SELECT rate_limit_rule('r', per_hour => 1, burst => 2)":                                      "burst: 2: needs token bucket or gcra",
		"SELECT rate_limit_rule(NULL, per_hour => 1)":                                                 "name: must be given",
		"SELECT rate_limit_rule('r', action => 'block', per_hour => 1)":                               "action: 'block': must be limit for a rule with limits",
		"SELECT rate_limit_rule('r', per_hour => 1); SELECT rate_limit_rule('r', action => 'exempt')": "action: 'exempt': must be limit for a rule with limits",
	} {
		failure := s.fails(sql)
		bare := failure.ConstraintName == "" || strings.Contains(failure.ConstraintName, "_needs_") ||
			!strings.Contains(failure.Where, "INSERT INTO")
		if !strings.Contains(failure.Message, want) || !bare {
			t.Errorf("%s: %s %s, want %q", sql, failure.Message, failure.Where, want)
		}
	}
	s.want("SELECT count(*) FROM rate_limit_rules", "0")
}

// To forget a person takes exactly one name.
func TestForgetNeedsOnePerson(t *testing.T) {
	s := newSite(t)
	const nobody = "user_id, key_id, key, address: one of them must say who is to be forgotten"
	for sql, want := range map[string]string{
		"SELECT rate_limit_forget_person()":                              nobody,
		"SELECT rate_limit_forget_person(user_id => 'ann', key_id => 1)": nobody,
	} {
		if failure := s.fails(sql); !strings.Contains(failure.Message, want) {
			t.Errorf("%s: %s, want %q", sql, failure.Message, want)
		}
	}
}

// near shows the counters with at least 80 % used, by the amounts of their users.
func TestNear(t *testing.T) {
	s := newSite(t)
	s.exec(`SELECT rate_limit_rule('r', algorithm => 'fixed_window', per_hour => 100);
		SELECT rate_limit_rule('b', algorithm => 'token_bucket', per_hour => 100, durable => true);
		SELECT rate_limit_rule('s', per_hour => 100); SELECT rate_limit_rule('g', algorithm => 'gcra', per_hour => 100); SELECT rate_limit_rule('l', algorithm => 'sliding_log', per_hour => 10);
		INSERT INTO rate_limit_users (user_id, tier) VALUES ('a b%', 'free');
		INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('r', 'per_hour', 'a b%', 20);
		INSERT INTO rate_limit_overrides (rule, limit_name, tier, events) VALUES ('r', 'per_hour', 'pro', 1000);
		INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) VALUES ('rule/r/per_hour', 'x', 80, now(), now() + '1 h'), ('rule/r/per_hour', 'y', 79, now(), now() + '1 h'),
			('rule/r/per_hour', 'old', 99, now() - '2 h'::interval, now() - '1 h'::interval), ('rule/r/per_hour', 'a%20b%25', 17, now(), now() + '1 h'), ('rule/r/per_hour', 'bob', 90, now(), now() + '1 h'), ('zone', 'x', 99, now(), now() + '1 h');
		INSERT INTO rate_limit_ephemeral (prefix, key, count, prev_count, window_start, expires_at) VALUES ('rule/s/per_hour', 'x', 50, 80, now() - '30 min'::interval, now() + '1 h'), ('rule/s/per_hour', 'y', 30, 80, now() - '30 min'::interval, now() + '1 h');
		INSERT INTO rate_limit_ephemeral (prefix, key, tokens, last_refill, expires_at) VALUES ('rule/g/per_hour', 'x', 10, now(), now() + '1 h'), ('rule/g/per_hour', 'y', 50, now(), now() + '1 h');
		INSERT INTO rate_limit_ephemeral (prefix, key, hits, expires_at) SELECT 'rule/l/per_hour', 'x', array_agg(now() - i * interval '5 min'), now() + '1 h' FROM generate_series(1, 20) AS i;
		INSERT INTO rate_limit_durable (prefix, key, tokens, last_refill, expires_at) VALUES ('rule/b/per_hour', 'x', 5, now(), now() + '1 h'), ('rule/b/per_hour', 'y', 5, now() - '1 h'::interval, now() + '1 h')`)
	s.want("SELECT rule, key, used, quota FROM rate_limit_near ORDER BY 1, 2",
		"b x 95 100\ng x 90 100\nl x 11 10\nr a%20b%25 17 20\nr x 80 100\ns x 90 100")
	s.want("SELECT in_force, limits FROM rate_limit_rule_states WHERE name = 'b'",
		"t per_hour 100/1h token_bucket durable")
	s.want("SELECT user_id, events, limit_events FROM rate_limit_overridden WHERE tier IS NULL",
		"a b% 20 100")
}

// A proxy that renewed its row while the server's clock was ahead is not live until it renews the row again.
func TestAProxySeenInTheFutureIsNotLive(t *testing.T) {
	s := newSite(t)
	s.exec("INSERT INTO rate_limit_nodes (node, seen) VALUES ('now', now()), ('soon', now() + '5 s'), " +
		"('later', now() + '2 days'), ('gone', now() - interval '11 s')")
	s.want("SELECT string_agg(node, ' ' ORDER BY node) FROM rate_limit_proxies WHERE live", "now soon")
	s.want("SELECT string_agg(node, ' ' ORDER BY node) FROM rate_limit_nodes n WHERE "+schema.NodeIsLive,
		"now soon")
}

// What is used of one key is found by the index of the counters, however many there are.
func TestTheUseOfAKeyIsFoundByAnIndex(t *testing.T) {
	s := newSite(t)
	s.exec(`SELECT rate_limit_rule('r', per_minute => 10, per_day => 100);
		INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) SELECT 'rule/r/per_minute', i, 1, now(), now() + '1 h' FROM generate_series(1, 2000) i;
		ANALYZE`)
	plan := s.text("EXPLAIN SELECT * FROM rate_limit_used WHERE key = '5'")
	if !strings.Contains(plan, " using rate_limit_ephemeral_pkey") ||
		strings.Contains(plan, "rate_limit_rows") {
		t.Errorf("the plan is\n%s", plan)
	}
}
