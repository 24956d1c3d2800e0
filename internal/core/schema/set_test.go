package schema_test

import (
	"strings"
	"testing"
)

// Each function makes a row, changes what is named and keeps the rest, and takes columns back that reset names.
func TestFunctionsOfThePolicy(t *testing.T) {
	s := newSite(t)
	const rules = "SELECT name, priority, paths, count_by, cost FROM rate_limit_rules"
	const limits = "SELECT name, algorithm, events, per, calendar, time_zone, burst, durable, on_exceed FROM rate_limit_rule_limits ORDER BY name"
	const overrides = "SELECT events, burst, user_id, key_id, upper(valid) > now(), reason FROM rate_limit_overrides ORDER BY id"
	const bans = "SELECT network, user_id, key_id, until, reason FROM rate_limit_bans"
	for _, step := range [][2]string{
		{"SELECT rate_limit_tier('gold', rank => 7, comment => 'dear')", "created"},
		{"SELECT rate_limit_tier('gold', rank => 8)", "changed"},
		{"SELECT rate_limit_tier('gold')", "changed"},
		{"SELECT * FROM rate_limit_tiers WHERE tier = 'gold'", "gold 8 dear"},
		{"SELECT rate_limit_tier('gold', reset => '{rank,comment}')", "changed"},
		{"SELECT * FROM rate_limit_tiers WHERE tier = 'gold'", "gold 0 -"},
		{"SELECT rate_limit_user('zoe', tier => 'gold', tier_until => '2999-01-01 00:00+00', period_start => '2026-01-31', time_zone => 'Europe/Berlin')", "created"},
		{"SELECT rate_limit_user('zoe', tier => 'free', reset => '{tier_until,time_zone}')", "changed"},
		{"SELECT user_id, tier, tier_until, period_start, time_zone, comment FROM rate_limit_users WHERE user_id = 'zoe'", "zoe free infinity 2026-01-31 UTC -"},
		{"SELECT rate_limit_key(1, tier => 'gold', name => 'n', expires_at => 'infinity')", "changed"},
		{"SELECT rate_limit_revoke_key(1)", "t"},
		{"SELECT rate_limit_key(1, reset => '{revoked_at,tier}')", "changed"},
		{"SELECT id, name, tier, expires_at, revoked_at, revoked_by FROM rate_limit_api_keys WHERE id = 1", "1 n - infinity - -"},
		{"SELECT rate_limit_rule('r', algorithm => 'token_bucket', per_hour => 10, burst => 5, paths => '{/a,/b}', cost => 3)", "created"},
		{"SELECT rate_limit_rule('r', per_day => 20, priority => 7, reset => '{paths,cost,per_hour,burst}')", "changed"},
		{rules, "r 7 - {user} 1"},
		{limits, "per_day token_bucket 20 24:00:00 - - - f refuse"},
		{"SELECT rate_limit_limit('r', 'some', '50/10s', burst => 9)", "created"},
		{"SELECT rate_limit_limit('r', 'month', 'unlimited/1mo calendar Europe/Berlin', durable => true)", "created"},
		{"SELECT rate_limit_limit('r', 'slots', '5/in_flight')", "created"},
		{limits, "month fixed_window - - month Europe/Berlin - t refuse\nper_day token_bucket 20 24:00:00 - - - f refuse\n" +
			"slots in_flight 5 - - - - f refuse\nsome token_bucket 50 00:00:10 - - 9 f refuse"},
		{"SELECT rate_limit_limit('r', 'some', '7/1h30m')", "changed"},
		{"SELECT rate_limit_limit('r', 'month', '8/s', algorithm => 'fixed_window', reset => '{durable}')", "changed"},
		{"SELECT rate_limit_delete_limit('r', 'slots'), rate_limit_delete_limit('r', 'slots')", "t f"},
		{limits, "month fixed_window 8 00:00:01 - - - f refuse\nper_day token_bucket 20 24:00:00 - - - f refuse\nsome token_bucket 7 01:30:00 - - 9 f refuse"},
		{"SELECT rate_limit_limit('r', 'some', '7/1d calendar')", "changed"},
		{"SELECT algorithm, calendar, burst FROM rate_limit_rule_limits WHERE name = 'some'", "fixed_window day -"},
		{"SELECT rate_limit_override('r', 'per_day', user_id => 'zoe', burst => 2)", "created"},
		{"SELECT rate_limit_override('r', 'per_day', '100', user_id => 'zoe', reset => '{burst}')", "changed"},
		{"SELECT rate_limit_override('r', 'per_day', 'unlimited', user_id => 'zoe', until => now() + '1 h', reason => 'launch')", "created"},
		{"SELECT rate_limit_override('r', 'per_day', '5', user_id => 'zoe', until => now() + '2 h')", "changed"},
		{"SELECT rate_limit_override('r', 'per_day', 'unlimited', key_id => 1)", "created"},
		{overrides, "100 - zoe - - -\n5 - zoe - t launch\n- - - 1 - -"},
		{"SELECT rate_limit_delete_override('r', 'per_day', user_id => 'zoe'), rate_limit_delete_override('r', 'per_day', user_id => 'zoe')", "t f"},
		{overrides, "- - - 1 - -"},
		{"SELECT rate_limit_ban('192.0.2.0/24', reason => 'scraping', until => '2999-01-01 00:00+00')", "created"},
		{"SELECT rate_limit_ban('192.0.2.0/24')", "changed"},
		{bans, "192.0.2.0/24 - - infinity -"},
		{"SELECT rate_limit_unban('::ffff:192.0.2.0/120'), rate_limit_unban('192.0.2.0/24')", "t f"},
		{"SELECT rate_limit_ban(user_id => 'nobody'), rate_limit_ban(key_id => 1)", "created created"},
		{"SELECT rate_limit_delete_user('zoe'), rate_limit_delete_user('zoe')", "t f"},
		{"SELECT rate_limit_delete_rule('r'), rate_limit_delete_rule('r')", "t f"},
	} {
		s.want(step[0], step[1])
	}
}

// An error names the argument first, what it holds, and what it must be, and leaves nothing behind. A text
// that is not the name of a column does not become SQL.
func TestFunctionsOfThePolicyRefuse(t *testing.T) {
	s := newSite(t)
	s.exec("SELECT rate_limit_rule('r', per_hour => 10)")
	before := s.text("SELECT rate_limit_policy(true)")
	for sql, want := range map[string]string{
		"SELECT rate_limit_tier('a b')":                                                                       `tier: "a b": must be 1 to 100 characters without spaces or slashes`,
		"SELECT rate_limit_tier(NULL)":                                                                        "tier: must be given",
		"SELECT rate_limit_user('zoe')":                                                                       "tier: must be given for a new row",
		"SELECT rate_limit_user('zoe', tier => 'nix')":                                                        `tier: "nix": must be in rate_limit_tiers`,
		"SELECT rate_limit_user('ann', reset => '{tier}')":                                                    "tier: must be given",
		"SELECT rate_limit_user('ann', reset => '{tiers}')":                                                   `reset: "tiers": must be one of tier, comment, time_zone, tier_until, period_start`,
		"SELECT rate_limit_user('ann', reset => '{user_id}')":                                                 `reset: "user_id": must be one of`,
		"SELECT rate_limit_user('ann', comment => 'x', reset => '{comment}')":                                 "comment: must not be given and reset",
		`SELECT rate_limit_user('ann', reset => '{"tier = ''pro'' --"}')`:                                     `reset: "tier = 'pro' --": must be one of`,
		`SELECT rate_limit_set('rate_limit_tiers', '{tier}', '{"tier": "x", "rank = 1; DROP": 1}', NULL)`:     "column t.rank = 1; DROP does not exist",
		"SELECT rate_limit_key(99, name => 'x')":                                                              "key: 99: no key has this id",
		"SELECT rate_limit_rule('r', reset => '{algorithm}')":                                                 `reset: "algorithm": must be one of`,
		"SELECT rate_limit_rule('r', reset => '{per_hour}')":                                                  "missing: a rule that limits must have one or more of them",
		"SELECT rate_limit_limit('r', 'x', '50')":                                                             `amount of r/x: "50": must be EVENTS/WINDOW`,
		"SELECT rate_limit_limit('r', 'x', '-1/s')":                                                           `amount of r/x: "-1/s": must be EVENTS/WINDOW`,
		"SELECT rate_limit_limit('r', 'x', '1/1mo')":                                                          `amount of r/x: "1/1mo": must be EVENTS/WINDOW`,
		"SELECT rate_limit_limit('r', 'x', '1/s', burst => 5)":                                                "burst: 5: needs token bucket or gcra",
		"SELECT rate_limit_limit('nix', 'x', '1/s')":                                                          `rule: "nix": must be in rate_limit_rules`,
		"SELECT rate_limit_limit('r', 'x')":                                                                   "exactly one of per and calendar must be given",
		"SELECT rate_limit_override('r', 'x', '1', user_id => 'ann')":                                         "r/x: no such limit",
		"SELECT rate_limit_override('r', 'per_hour', '1')":                                                    "exactly one of tier user id and key id must be given",
		"SELECT rate_limit_override('r', 'per_hour', 'much', user_id => 'ann')":                               `amount of r/per_hour: "much": must be a whole number, or unlimited`,
		"SELECT rate_limit_override('r', 'per_hour', '1', user_id => 'nobody')":                               `user_id: "nobody": must be in rate_limit_users`,
		"SELECT rate_limit_override('r', 'per_hour', '1', user_id => 'ann', until => now() - interval '1 h')": "range lower bound must be less than or equal to range upper bound",
		"SELECT rate_limit_ban()":                                                                             "network, user_id, key_id: exactly one of them must be given",
		"SELECT rate_limit_ban(user_id => 'ann', until => '2020-01-01 00:00+00')":                             `until: "2020-01-01T00:00:00+00:00": must be in the future`,
	} {
		if failure := s.fails(sql); !strings.Contains(failure.Message, want) {
			t.Errorf("%s: %s, want %q", sql, failure.Message, want)
		}
	}
	s.want("SELECT rate_limit_policy(true)", before)
}
