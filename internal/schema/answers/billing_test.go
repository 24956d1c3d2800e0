package answers_test

import (
	"fmt"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// A user's billing periods are those of its period_start and time_zone, or as of the longest calendar limit
// in money of its tier, or months in UTC.
func TestBillingPeriodIsTheUsersOrOfItsLongestLimit(t *testing.T) {
	s := sqltest.New(t)
	for _, test := range []struct{ does, policy, want string }{
		{"no limit", "", "month UTC 1"},
		{"a limit", "rule('a', limits => '{m=5 money/1mo calendar Europe/Berlin}')", "month Europe/Berlin 1"},
		{"the longest", `rule('a', limits => '{d=5 money/1d calendar,w=5 money/1w calendar Asia/Tokyo}')`,
			"week Asia/Tokyo 1"},
		{"of several rules", `rule('a', limits => '{d=5 money/1d calendar}'),
			rate_limit_rule('b', limits => '{y=9 money/1y calendar Asia/Tokyo}')`, "year Asia/Tokyo 1"},
		{"tokens", "rule('a', limits => '{y=5 tokens/1y calendar Asia/Tokyo}')", "month UTC 1"},
		{"a window", "rule('a', limits => '{h=5 money/1h,d=5 money/30d}')", "month UTC 1"},
		{"by address", `rule('a', count_by => '{ip}', limits => '{d=5 money/1d calendar}')`, "month UTC 1"},
		{"by key", `rule('a', count_by => '{key}', limits => '{d=5 money/1d calendar}')`, "day UTC 1"},
		{"another tier", "rule('a', tiers => '{pro}', limits => '{d=5 money/1d calendar}')", "month UTC 1"},
		{"the tier", "rule('a', tiers => '{pro,free}', limits => '{d=5 money/1d calendar}')", "day UTC 1"},
		{"off", "rule('a', mode => 'off', limits => '{d=5 money/1d calendar}')", "month UTC 1"},
		{"shadow", "rule('a', mode => 'shadow', limits => '{d=5 money/1d calendar}')", "day UTC 1"},
		{"a family", `rule('a', family => 'f', priority => 2, tiers => '{free}',
			limits => '{d=5 money/1d calendar}'),
			rate_limit_rule('b', family => 'f', priority => 1, limits => '{y=5 money/1y calendar}')`,
			"day UTC 1"},
		{"a family by path", `rule('a', family => 'f', priority => 2, paths => '{/x}',
			limits => '{d=5 money/1d calendar}'),
			rate_limit_rule('b', family => 'f', priority => 1, limits => '{y=5 money/1y calendar}')`,
			"year UTC 1"},
		{"an override", `rule('a', limits => '{d=5 money/1d calendar Asia/Tokyo}'),
			rate_limit_user('ann', overrides => '{a/d=unlimited}')`, "day Asia/Tokyo 1"},
		{"a limit above", `user('org', tier => 'pro', time_zone => 'Asia/Tokyo'),
			rate_limit_user('ann', parent => 'org'),
			rate_limit_rule('a', tiers => '{pro}', limits => '{d=5 money/1d calendar}')`, "month UTC 1"},
		{"a zone", `user('ann', time_zone => 'US/Eastern'),
			rate_limit_rule('a', limits => '{d=5 money/1d calendar}')`, "month America/New_York 1"},
		{"a day", `user('ann', period_start => '2024-02-29'),
			rate_limit_rule('a', limits => '{m=5 money/1mo calendar Asia/Tokyo}')`, "month UTC 29"},
		{"a zone that is gone", `user('ann', period_start => '2024-02-03'),
			rate_limit_rule('a', limits => '{w=5 money/1w calendar Asia/Tokyo}');
			SET search_path = ''; UPDATE public.rate_limit_users SET time_zone = 'Mars/Base';
			RESET search_path;
			SELECT 1`, "month Asia/Tokyo 3"},
	} {
		s.Exec("BEGIN")
		if test.policy != "" {
			s.Exec("SELECT rate_limit_" + test.policy)
		}
		if got := s.Query("SELECT unit, zone, day FROM rate_limit_billing('{ann}')"); got != test.want {
			t.Errorf("%s: got %s, want %s", test.does, got, test.want)
		}
		s.Exec("ROLLBACK")
	}
}

// An invoice splits the day in UTC in which its period turns, also of a day that is summed. For all who are
// below a user, the periods of the user hold; those of their own invoices are others.
func TestInvoiceTurnsWithinADay(t *testing.T) {
	s := sqltest.New(t)
	s.Exec(`SELECT rate_limit_rule('org', tiers => '{pro}', limits => '{d=5 money/1d calendar Asia/Tokyo}'),
			rate_limit_rule('person', tiers => '{free}', limits => '{d=5 money/1d calendar}'),
			rate_limit_user('ann', parent => 'bob');
		CREATE TABLE turn AS SELECT date_trunc('day', now() - interval '3 days', 'Asia/Tokyo') AS at;
		SELECT rate_limit_ledger_upkeep(at::date + i) FROM turn, generate_series(-2, 2) i;
		INSERT INTO rate_limit_ledger (day, id, time, user_id, ancestors, model, money, charges)
		SELECT (t AT TIME ZONE 'UTC')::date, gen_random_uuid(), t, 'ann', '{bob}', 'm', money, '[]'
		FROM turn, (VALUES (-1, 1000000), (0, 2000000), (32399, 4000000), (32400, 8000000)) v(after, money),
			LATERAL (SELECT turn.at + after * interval '1 s' AS t) t`)
	check := func() {
		t.Helper()
		const invoice = `SELECT string_agg(concat_ws(' ', round(i.money), i.period - turn.at), ', '
				ORDER BY i.period)
			FROM turn, rate_limit_invoice('%s', turn.at - interval '9 h', turn.at + interval '24 h') i`
		s.Expect(fmt.Sprintf(invoice, "bob"), "1 -09:00:00, 14 00:00:00")
		s.Expect(fmt.Sprintf(invoice, "ann"), "7 -09:00:00, 8 09:00:00")
	}
	check()
	for s.Query("SELECT rate_limit_totals_upkeep()") == "t" {
	}
	check()
}

// Today and the running period of a user are those of its invoice, in the lists of what was spent and of what
// was requested.
func TestListsFollowTheBillingPeriod(t *testing.T) {
	s := sqltest.New(t)
	s.Exec(`SELECT rate_limit_rule('a', limits => '{d=5 money/1d calendar Asia/Tokyo}'),
			rate_limit_upkeep(now() - interval '2 days');
		CREATE TABLE turn AS SELECT date_trunc('day', now(), 'Asia/Tokyo') AS at;
		CREATE TABLE r AS SELECT turn.at + after * interval '1 h' AS at, n FROM turn,
			(VALUES (-25, 1), (-24, 2), (-1, 4), (0, 8)) v(after, n);
		SELECT rate_limit_ledger_upkeep(r.at::date) FROM r;
		INSERT INTO rate_limit_ledger (day, id, time, user_id, ancestors, model, money, charges)
			SELECT (at AT TIME ZONE 'UTC')::date, gen_random_uuid(), at, 'ann', '{}', 'm', n, '[]' FROM r;
		INSERT INTO rate_limit_metrics (granularity, time, user_id, requests, last_request)
			SELECT g, date_trunc(g, at, 'UTC'), 'ann', sum(n), max(at) FROM r,
				unnest('{hour,day}'::text[]) g GROUP BY 1, 2`)
	s.Expect(`SELECT today * 1000000, this_month * 1000000, month_before * 1000000 FROM rate_limit_spent()
		WHERE list = 'person'`, "8.000000000 8.000000000 6.000000000")
	s.Expect("SELECT today, this_month FROM rate_limit_recent('ann')", "8 8")
	s.Expect(`SELECT u.requests
		FROM turn, rate_limit_usage('ann', at - interval '24 h', at + interval '24 h') u
		WHERE num_nonnulls(day, key_id, prefix) = 0`, "14")
}

// state names the limits with windows that begin in another zone than the invoices of their users.
func TestStateNamesLimitsThatInvoicesDoNotFollow(t *testing.T) {
	s := sqltest.New(t)
	s.Exec(`SELECT rate_limit_rule('a', tiers => '{pro}',
			limits => '{m=5 money/1mo calendar Europe/Berlin,d=1 money/1d calendar Europe/Berlin}'),
		rate_limit_user('bob', period_start => '2024-01-31', time_zone => 'Europe/Berlin')`)
	const state = "SELECT summary FROM rate_limit_state WHERE state = 'periods' ORDER BY 1"
	s.Expect(state, "")
	s.Exec(`SELECT rate_limit_user('bob', time_zone => 'Asia/Tokyo'),
		rate_limit_user('ann', time_zone => 'Asia/Tokyo'),
		rate_limit_rule('b', tiers => '{pro}', limits => '{w=5 money/1w calendar}')`)
	const begins = "begins its windows in %s, but invoices of the tier \"pro\" %sin %s."
	s.Expect(state, fmt.Sprintf("The limit a/d "+begins+"\nThe limit b/w "+begins+"\nThe limit b/w "+begins,
		"Europe/Berlin", "by time_zone ", "Asia/Tokyo", "UTC", "by time_zone ", "Asia/Tokyo", "UTC", "",
		"Europe/Berlin"))
}
