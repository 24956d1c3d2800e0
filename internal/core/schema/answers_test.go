package schema_test

import "testing"

func TestTheStateIsASentence(t *testing.T) {
	s := newSite(t)
	proxy := func(columns, values string) {
		s.exec("INSERT INTO rate_limit_nodes (node, applied_seq, seen" + columns + ") VALUES (" + values + ")")
	}
	const state = "SELECT state, said FROM rate_limit_state"
	s.want(state, "stopped No proxy counts in this database.")
	newest := s.text("SELECT max(seq) FROM rate_limit_changes")
	proxy("", "'a', "+newest+", now()")
	proxy(", ended", "'stopped in order', "+newest+", now(), now()")
	s.want(state, "enforcing Limits are enforced by 1 of 1 proxy.")
	proxy("", "'b', NULL, now()")
	s.want("SELECT said FROM rate_limit_state WHERE node IS NULL", "Limits are enforced by 1 of 2 proxies.")
	proxy(", problems", "'c', "+newest+" - 1, now(), '{rule x: limit: must be less}'")
	proxy("", "'d', "+newest+", now() - interval '1 minute'")
	proxy(", local_from, local_until", "'e', "+newest+", now(), now(), '2026-01-01 14:05 UTC'")
	s.exec("UPDATE rate_limit_nodes SET local_until = now() WHERE node = 'e'")
	s.want("SELECT state, node FROM rate_limit_state", "enforcing -\nlocal e\nwithout a policy b\nbehind c\nunusable c\ngone d")
	s.want("SELECT said FROM rate_limit_state WHERE node IN ('b', 'c')", "b has no policy, and other proxies have one: no rule and no ban holds there.\n"+
		"c has yet to obey 1 change of the policy.\nc cannot use a rule: rule x: limit: must be less")
	proxy(", cannot", "'f', "+newest+", now(), 'GRANT SELECT ON x TO y'")
	proxy(", undecided, undecided_at", "'g', "+newest+", now(), 7, now()")
	s.want("SELECT state, node FROM rate_limit_state WHERE state IN ('open', 'enforcing')", "open f\nopen g\nenforcing -")
	s.exec("DELETE FROM rate_limit_nodes WHERE node NOT IN ('f', 'g')")
	s.want("SELECT state, node FROM rate_limit_state", "open f\nopen g")
}

func TestWhyIsASentenceForEachRow(t *testing.T) {
	s := newSite(t)
	s.exec("SELECT rate_limit_upkeep()")
	audit := func(at, decision, columns, values string) {
		s.exec("INSERT INTO rate_limit_audit (time, cost, duration_us, node, method, host, path, decision, prefix" + columns +
			") VALUES ('" + at + "', 1, 1, 'edge', 'GET', 'a.test', '/x', '" + decision + "'" + values + ")")
	}
	today := s.text("SELECT date_trunc('day', now() AT TIME ZONE 'UTC')::date")
	limited := ", 'rule/free/per_hour', 'ann', 'ann', 5, 0, 90000, '192.0.2.7', 7"
	audit(today+" 00:05:10Z", "limited", ", key, user_id, quota, remaining, retry_after_ms, address, count", limited)
	audit(today+" 00:05:20Z", "blocked", ", user_id, reason", ", '', 'ann', 'banned'")
	audit(today+" 00:05:30Z", "allowed", ", user_id", ", 'web', 'ann'")
	audit(today+" 00:09:00Z", "rejected", ", key_id, reason", ", '', 7, 'key_revoked'")
	why := func(who, at, want string) {
		t.Helper()
		s.want("SELECT replace(said, '"+today+"', 'TODAY') FROM rate_limit_why('"+who+"', '"+today+" "+at+"Z')", want)
	}
	refused := "ann was refused at TODAY 00:05:20 UTC, GET a.test/x: banned.\n" +
		"ann was refused 7 times at TODAY 00:05:10 UTC, GET a.test/x: the limit rule/free/per_hour had 0 of 5 left, and would have let it pass 90 s later."
	why("ann", "00:05:00", refused)
	why("ann", "23:59:00", refused) // the last minute with a refusal
	why("ann", "00:04:59", "No refusal of ann is recorded in the day before TODAY 00:04 UTC.")
	why("#7", "00:10", "#7 was refused at TODAY 00:09:00 UTC, GET a.test/x: key revoked.")
	why("192.0.2.7", "00:10", "192.0.2.7 was refused 7 times at TODAY 00:05:10 UTC, GET a.test/x: the limit rule/free/per_hour had 0 of 5 left, "+
		"and would have let it pass 90 s later.")
	why("2001:db8::1", "00:10", "No refusal of 2001:db8::1 is recorded in the day before TODAY 00:10 UTC.")
}
