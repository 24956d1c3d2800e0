package changes_test

import (
	"fmt"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// settledRow settles a request of ann and her parent that began at a time, as a proxy does.
func settledRow(began string) string {
	return fmt.Sprintf(`INSERT INTO rate_limit_ledger (day, id, time, user_id, key_id, ancestors, output,
			charges)
		SELECT now() AT TIME ZONE 'UTC', (lpad(to_hex((extract(epoch FROM %s) * 1000)::bigint), 12, '0')
				|| '7000' || substr(md5(random()::text), 1, 16))::uuid, clock_timestamp(), 'ann', 7,
			'{org}', 7, '[{"prefix": "rule/r/l", "key": "2|ann x", "units": 7}]';
		INSERT INTO rate_limit_durable (prefix, key, count, expires_at)
			VALUES ('rule/r/l', '2|ann x', 7, now() + interval '1 h');`, began)
}

// A request that ran when its sender was forgotten brings no name back. One that began later does, also on
// the same day. The digest of the name stays for a day.
func TestRunningRequestBringsNoNameBack(t *testing.T) {
	s := sqltest.New(t)
	s.Exec(`INSERT INTO rate_limit_processes VALUES (1, now());
		INSERT INTO rate_limit_durable (prefix, key, held, expires_at)
			VALUES ('rule/r/l', '2|ann x', '{{1,5},{2,5}}', now() + interval '1 h')`)
	const forget = "SELECT string_agg(concat_ws(' ', name, deleted, kept), '; ') " +
		"FROM rate_limit_forget_person('ann', account => true) " +
		"WHERE name LIKE 'running%' OR name = 'rate_limit_durable'"
	const names = `SELECT (SELECT count(*) FROM rate_limit_ledger WHERE user_id = 'ann'),
		(SELECT count(*) FROM rate_limit_ledger WHERE user_id IS NULL AND charges -> 0 ->> 'key' IS NULL),
		(SELECT count(*) FROM rate_limit_durable)`
	s.Expect(forget, "rate_limit_durable 1 0; running requests, at least 0 1")
	s.Expect("SELECT count(*) FROM rate_limit_forgotten WHERE digest = sha256('user:ann')", "1")
	s.Exec(settledRow("now() - interval '1 h'"))
	s.Expect(names, "1 0 1")
	s.Exec("SELECT rate_limit_ledger_upkeep()")
	s.Expect(names, "0 1 0")
	s.Exec(settledRow("now() + interval '2 min'") + "SELECT rate_limit_ledger_upkeep()")
	s.Expect(names, "1 1 1")
	s.Expect(forget, "rate_limit_durable 1 0")
	s.Expect(names, "0 2 0")
	s.Exec("UPDATE rate_limit_forgotten SET at = at - interval '25 h'")
	s.Exec(settledRow("now() - interval '26 h'") + "SELECT rate_limit_ledger_upkeep()")
	s.Expect(names, "1 2 1")
	s.Expect("SELECT count(*) FROM rate_limit_forgotten", "0")
}

// An address, an API key and a parent are forgotten again as a user is.
func TestEachKindOfNameIsForgottenAgain(t *testing.T) {
	for what, argument := range map[string]string{"a parent": "'org'", "an API key": "key_id => 7",
		"the key of a counter": "key => 'x'"} {
		s := sqltest.New(t)
		s.Exec("SELECT rate_limit_forget_person(" + argument + ");" + settledRow("now() - interval '1 h'") +
			"SELECT rate_limit_ledger_upkeep()")
		got := s.Query("SELECT count(*) FROM rate_limit_ledger WHERE ancestors = '{org}' AND key_id = 7 " +
			"AND charges -> 0 ->> 'key' = '2|ann x'")
		if got != "0" {
			t.Errorf("%s: the row of a request that ran still has it", what)
		}
	}
}
