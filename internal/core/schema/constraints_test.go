package schema_test

import (
	"strings"
	"testing"
)

// refusals are commands that break one constraint each, after its name. "table:" is left out
// of the names of constraints that several tables have.
var refusals = []struct{ constraint, sql string }{
	{"rate_limit_tiers_pkey", "INSERT INTO rate_limit_tiers (tier) VALUES ('free')"},
	{"rate_limit_tiers:tier_must_be_1_to_100_characters_without_spaces_or_slashes",
		"INSERT INTO rate_limit_tiers (tier) VALUES ('a b')"},

	{"rate_limit_users_pkey", "INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free')"},
	{"rate_limit_users:tier_must_be_in_rate_limit_tiers",
		"INSERT INTO rate_limit_users (user_id, tier) VALUES ('eve', 'fre')"},
	{"rate_limit_users:user_id_must_have_1_to_512_bytes",
		"INSERT INTO rate_limit_users (user_id, tier) VALUES ('', 'free')"},
	{"rate_limit_users:period_start_must_be_a_day_from_1900_to_2999",
		"UPDATE rate_limit_users SET period_start = '1899-12-31'"},
	{"rate_limit_users:time_zone_must_be_a_name_such_as_europe_berlin_or_utc",
		"UPDATE rate_limit_users SET time_zone = 'CET'"},
	{"rate_limit_users:time_zone_must_be_known_to_the_server",
		"UPDATE rate_limit_users SET time_zone = 'Europe/Berlyn'"},

	{"rate_limit_api_keys_pkey",
		"INSERT INTO rate_limit_api_keys (id, digest, user_id) VALUES (1, sha256('x'), 'ann')"},
	{"rate_limit_api_keys_digest_must_be_new",
		"INSERT INTO rate_limit_api_keys (digest, user_id) VALUES (sha256('ann'), 'ann')"},
	{"rate_limit_api_keys:user_id_must_be_in_rate_limit_users",
		"INSERT INTO rate_limit_api_keys (digest, user_id) VALUES (sha256('x'), 'eve')"},
	{"rate_limit_api_keys:id_must_be_above_0",
		"INSERT INTO rate_limit_api_keys (id, digest, user_id) VALUES (0, sha256('x'), 'ann')"},
	{"rate_limit_api_keys:digest_must_be_a_sha256_of_32_bytes",
		"UPDATE rate_limit_api_keys SET digest = 'prl_key' WHERE id = 1"},
	{"rate_limit_api_keys:hint_must_not_be_long_enough_to_be_a_key",
		"UPDATE rate_limit_api_keys SET hint = 'prl_12345678901234'"},
	{"rate_limit_api_keys:name_must_have_1_to_200_characters", "UPDATE rate_limit_api_keys SET name = ''"},
	{"rate_limit_api_keys:revoked_by_needs_revoked_at", "UPDATE rate_limit_api_keys SET revoked_by = 'me'"},
	{"rate_limit_api_keys:replaced_by_must_be_another_key",
		"UPDATE rate_limit_api_keys SET replaced_by = id"},
	{"rate_limit_api_keys:replaced_by_must_be_the_id_of_a_key",
		"UPDATE rate_limit_api_keys SET replaced_by = 99"},
	{"rate_limit_api_keys:counted_as_must_be_the_id_of_a_key",
		"UPDATE rate_limit_api_keys SET counted_as = 99"},
	{"rate_limit_api_keys:tier_must_be_in_rate_limit_tiers", "UPDATE rate_limit_api_keys SET tier = 'fre'"},

	{"rate_limit_rules_pkey", "INSERT INTO rate_limit_rules (name) VALUES ('r')"},
	{"rate_limit_rules_of_a_family_must_have_different_priorities",
		"INSERT INTO rate_limit_rules (name, family) VALUES ('a', 'f'), ('b', 'f')"},
	{"rate_limit_rules:name_must_be_1_to_100_letters_digits_or_dots_dashes_underscores",
		"INSERT INTO rate_limit_rules (name) VALUES ('a/b')"},
	{"rate_limit_rules:family_must_be_null_or_a_name_like_that_of_a_rule",
		"UPDATE rate_limit_rules SET family = ''"},
	{"rate_limit_rules:mode_must_be_enforce_or_shadow_or_off", "UPDATE rate_limit_rules SET mode = 'on'"},
	{"rate_limit_rules:action_must_be_limit_or_block_or_exempt",
		"UPDATE rate_limit_rules SET action = 'throttle'"},
	{"rate_limit_rules:hosts_must_be_null_or_names_with_at_most_a_leading_wildcard",
		"UPDATE rate_limit_rules SET hosts = '{api.*.com}'"},
	{"rate_limit_rules:paths_must_be_null_or_begin_with_slash_and_have_whole_wildcards",
		"UPDATE rate_limit_rules SET paths = '{/api*}'"},
	{"rate_limit_rules:paths_must_be_null_or_begin_with_slash_and_have_whole_wildcards",
		"INSERT INTO rate_limit_rules (name, paths) VALUES ('x', '{{/a},{/b}}')"},
	{"rate_limit_rules:methods_must_be_null_or_names_such_as_get",
		"UPDATE rate_limit_rules SET methods = '{GET,P T}'"},
	{"rate_limit_rules:networks_must_be_null_or_a_list_without_nulls",
		"UPDATE rate_limit_rules SET networks = '{}'"},
	{"rate_limit_rules:tiers_must_be_null_or_names_of_tiers", "UPDATE rate_limit_rules SET tiers = '{}'"},
	{"rate_limit_rules:count_by_must_be_of_user_key_tier_ip_host_route_header_or_all",
		"UPDATE rate_limit_rules SET count_by = '{users}'"},
	{"rate_limit_rules:count_by_must_be_of_user_key_tier_ip_host_route_header_or_all",
		"UPDATE rate_limit_rules SET count_by = '{user|}'"},
	{"rate_limit_rules:count_by_must_be_of_user_key_tier_ip_host_route_header_or_all",
		"UPDATE rate_limit_rules SET count_by = '{user|all}'"},
	{"rate_limit_rules:count_by_all_must_stand_alone", "UPDATE rate_limit_rules SET count_by = '{user,all}'"},
	{"rate_limit_rules:valid_must_not_be_empty", "UPDATE rate_limit_rules SET valid = 'empty'"},
	{"rate_limit_rules:cost_must_be_1_to_9007199254740992", "UPDATE rate_limit_rules SET cost = 0"},
	{"rate_limit_rules:settle_must_be_header_or_bytes_or_json_or_status",
		"UPDATE rate_limit_rules SET settle = 'status 401 = -1, else 0'"},
	{"rate_limit_rules:status_must_be_400_to_599", "UPDATE rate_limit_rules SET status = 200"},
	{"rate_limit_rules:message_must_have_at_most_4096_bytes",
		"UPDATE rate_limit_rules SET message = repeat('x', 4097)"},
	{"rate_limit_rules:retry_after_must_be_0_to_36525_days_without_months",
		"UPDATE rate_limit_rules SET retry_after = '1 month'"},
	{"rate_limit_rules:without_header_must_be_share_or_skip",
		"UPDATE rate_limit_rules SET without_header = 'refuse'"},

	{"rate_limit_rule_limits_pkey",
		"INSERT INTO rate_limit_rule_limits (rule, name, per) VALUES ('r', 'l', '1 s')"},
	{"rate_limit_rule_limits:rule_must_be_in_rate_limit_rules",
		"INSERT INTO rate_limit_rule_limits (rule, name, per) VALUES ('x', 'l', '1 s')"},
	{"rate_limit_rule_limits:name_must_be_1_to_100_letters_digits_or_dots_dashes_underscores",
		"UPDATE rate_limit_rule_limits SET name = 'per hour'"},
	{"rate_limit_rule_limits:algorithm_must_be_one_that_the_documentation_names",
		"UPDATE rate_limit_rule_limits SET algorithm = 'leaky_bucket'"},
	{"rate_limit_rule_limits:events_must_be_null_or_0_to_9007199254740992",
		"UPDATE rate_limit_rule_limits SET events = -1"},
	{"rate_limit_rule_limits:events_of_sliding_log_must_be_at_most_1000",
		"UPDATE rate_limit_rule_limits SET algorithm = 'sliding_log', events = 1001"},
	{"rate_limit_rule_limits:events_of_in_flight_must_be_at_most_1000",
		"UPDATE rate_limit_rule_limits SET algorithm = 'in_flight', per = NULL, events = 1001"},
	{"rate_limit_rule_limits:exactly_one_of_per_and_calendar_must_be_given",
		"UPDATE rate_limit_rule_limits SET algorithm = 'in_flight'"},
	{"rate_limit_rule_limits:exactly_one_of_per_and_calendar_must_be_given",
		"UPDATE rate_limit_rule_limits SET algorithm = 'fixed_window', calendar = 'day'"},
	{"rate_limit_rule_limits:per_must_be_1_ms_to_36525_days_without_months",
		"UPDATE rate_limit_rule_limits SET per = '1 month'"},
	{"rate_limit_rule_limits:calendar_must_be_day_or_week_or_month_or_year",
		"UPDATE rate_limit_rule_limits SET algorithm = 'fixed_window', calendar = 'hour', per = NULL"},
	{"rate_limit_rule_limits:calendar_needs_fixed_window",
		"UPDATE rate_limit_rule_limits SET calendar = 'day', per = NULL"},
	{"rate_limit_rule_limits:time_zone_needs_calendar",
		"UPDATE rate_limit_rule_limits SET time_zone = 'UTC'"},
	{"rate_limit_rule_limits:time_zone_must_be_a_name_such_as_europe_berlin_or_utc",
		"UPDATE rate_limit_rule_limits SET algorithm = 'fixed_window', calendar = 'day', per = NULL, " +
			"time_zone = 'local'"},
	{"rate_limit_rule_limits:time_zone_must_be_known_to_the_server",
		"UPDATE rate_limit_rule_limits SET algorithm = 'fixed_window', calendar = 'day', per = NULL, " +
			"time_zone = 'Europe/Berlyn'"},
	{"rate_limit_rule_limits:burst_must_be_1_to_9007199254740992",
		"UPDATE rate_limit_rule_limits SET algorithm = 'gcra', burst = 0"},
	{"rate_limit_rule_limits:burst_needs_token_bucket_or_gcra",
		"UPDATE rate_limit_rule_limits SET burst = 5"},
	{"rate_limit_rule_limits:gcra_must_have_burst_times_per_in_microseconds_up_to_2_pow_62",
		"UPDATE rate_limit_rule_limits SET algorithm = 'gcra', events = 9007199254740992"},
	{"rate_limit_rule_limits:gcra_must_drain_a_full_burst_within_36525_days",
		"UPDATE rate_limit_rule_limits SET algorithm = 'gcra', per = '36500 days', events = 1, burst = 2"},
	{"rate_limit_rule_limits:on_exceed_must_be_refuse_or_overage",
		"UPDATE rate_limit_rule_limits SET on_exceed = 'allow'"},
	{"rate_limit_rule_limits:overage_needs_fixed_window_or_sliding_window",
		"UPDATE rate_limit_rule_limits SET on_exceed = 'overage', algorithm = 'gcra'"},

	{"rate_limit_overrides_pkey",
		"INSERT INTO rate_limit_overrides (id, rule, limit_name, user_id) VALUES (1, 'r', 'l', 'bob')"},
	{"rate_limit_overrides_must_differ_in_more_than_the_amount",
		"INSERT INTO rate_limit_overrides (rule, limit_name, user_id) VALUES ('r', 'l', 'ann')"},
	{"rate_limit_overrides:rule_and_limit_name_must_be_in_rate_limit_rule_limits",
		"INSERT INTO rate_limit_overrides (rule, limit_name, user_id) VALUES ('r', 'm', 'ann')"},
	{"rate_limit_overrides:tier_must_be_in_rate_limit_tiers",
		"INSERT INTO rate_limit_overrides (rule, limit_name, tier) VALUES ('r', 'l', 'x')"},
	{"rate_limit_overrides:user_id_must_be_in_rate_limit_users",
		"INSERT INTO rate_limit_overrides (rule, limit_name, user_id) VALUES ('r', 'l', 'x')"},
	{"rate_limit_overrides:key_id_must_be_in_rate_limit_api_keys",
		"INSERT INTO rate_limit_overrides (rule, limit_name, key_id) VALUES ('r', 'l', 99)"},
	{"rate_limit_overrides:exactly_one_of_tier_user_id_and_key_id_must_be_given",
		"INSERT INTO rate_limit_overrides (rule, limit_name, tier, user_id) VALUES ('r', 'l', " +
			"'free', 'ann')"},
	{"rate_limit_overrides:events_must_be_null_or_0_to_9007199254740992",
		"UPDATE rate_limit_overrides SET events = -1"},
	{"rate_limit_overrides:burst_must_be_1_to_9007199254740992", "UPDATE rate_limit_overrides SET burst = 0"},
	{"rate_limit_overrides:valid_must_not_be_empty", "UPDATE rate_limit_overrides SET valid = 'empty'"},
	{"override_of_in_flight_must_have_at_most_1000_events",
		"UPDATE rate_limit_overrides SET events = 1001; UPDATE rate_limit_rule_limits SET algorithm = " +
			"'in_flight', per = NULL"},
	{"override_of_sliding_log_must_have_at_most_1000_events",
		"UPDATE rate_limit_overrides SET events = 1001; UPDATE rate_limit_rule_limits SET algorithm = " +
			"'sliding_log'"},
	{"override_of_sliding_log_must_have_at_most_1000_events",
		"UPDATE rate_limit_rule_limits SET algorithm = 'sliding_log'; UPDATE rate_limit_overrides SET " +
			"events = 1001"},
	{"override_of_sliding_log_must_have_at_most_1000_events",
		"UPDATE rate_limit_rule_limits SET algorithm = 'sliding_log'; INSERT INTO rate_limit_overrides " +
			"(rule, limit_name, tier, events) VALUES ('r', 'l', 'free', 1001)"},
	{"override_with_burst_must_be_of_token_bucket_or_gcra", "UPDATE rate_limit_overrides SET burst = 7"},
	{"override_with_burst_must_be_of_token_bucket_or_gcra",
		"UPDATE rate_limit_rule_limits SET algorithm = 'gcra'; UPDATE rate_limit_overrides SET burst = 7; " +
			"UPDATE rate_limit_rule_limits SET algorithm = 'sliding_window'"},
	{"override_of_gcra_must_have_burst_times_per_up_to_2_pow_62_us",
		"UPDATE rate_limit_rule_limits SET algorithm = 'gcra'; UPDATE rate_limit_overrides SET events = " +
			"9007199254740992"},
	{"override_of_gcra_must_drain_a_full_burst_within_36525_days",
		"UPDATE rate_limit_rule_limits SET algorithm = 'gcra', per = '30000 days', burst = 10; UPDATE " +
			"rate_limit_overrides SET events = 1"},

	{"rate_limit_bans_pkey", "INSERT INTO rate_limit_bans (id, user_id) VALUES (1, 'bob')"},
	{"rate_limit_bans_network_must_not_be_banned_twice",
		"INSERT INTO rate_limit_bans (network) VALUES ('192.0.2.0/24'), ('192.0.2.0/24')"},
	{"rate_limit_bans_user_id_must_not_be_banned_twice",
		"INSERT INTO rate_limit_bans (user_id) VALUES ('ann')"},
	{"rate_limit_bans_key_id_must_not_be_banned_twice",
		"INSERT INTO rate_limit_bans (key_id) VALUES (1), (1)"},
	{"rate_limit_bans:key_id_must_be_in_rate_limit_api_keys",
		"INSERT INTO rate_limit_bans (key_id) VALUES (99)"},
	{"rate_limit_bans:exactly_one_of_network_user_id_and_key_id_must_be_given",
		"INSERT INTO rate_limit_bans (reason) VALUES ('x')"},
	{"rate_limit_bans:user_id_must_have_1_to_512_bytes",
		"INSERT INTO rate_limit_bans (user_id) VALUES (repeat('x', 513))"},

	{"rate_limit_changes_pkey", "INSERT INTO rate_limit_changes (seq, kind, by) OVERRIDING SYSTEM VALUE " +
		"SELECT min(seq), 'user', 'x' FROM rate_limit_changes"},
	{"rate_limit_changes:kind_must_be_what_a_table_holds",
		"INSERT INTO rate_limit_changes (kind, by) VALUES ('users', 'x')"},
	{"rate_limit_secrets_pkey", "INSERT INTO rate_limit_secrets VALUES ('partition', 'x')"},
	{"rate_limit_processes_pkey", "INSERT INTO rate_limit_processes VALUES (1, now()), (1, now())"},
	{"rate_limit_nodes_pkey", "INSERT INTO rate_limit_nodes (node) VALUES ('n'), ('n')"},
	{"rate_limit_nodes:node_must_have_1_to_200_bytes", "INSERT INTO rate_limit_nodes (node) VALUES ('')"},

	{"rate_limit_audit:decision_must_be_allowed_limited_blocked_rejected_shadow_error",
		"CREATE TABLE day PARTITION OF rate_limit_audit FOR VALUES FROM (MINVALUE) TO (MAXVALUE);" +
			"INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, node) VALUES (now(), 1, " +
			"1, 'denied', 'web', 'n')"},
	{"rate_limit_metrics:granularity_must_be_minute_hour_or_day",
		"CREATE TABLE others PARTITION OF rate_limit_metrics DEFAULT; INSERT INTO rate_limit_metrics " +
			"(granularity, time, last_request) VALUES ('fortnight', '2026-01-01', now())"},
	{"rate_limit_writers_pkey",
		"INSERT INTO rate_limit_writers (writer, node, batch) VALUES ('w', 'n', 1), ('w', 'n', 2)"},
	{"rate_limit_retention_pkey",
		"INSERT INTO rate_limit_retention (what, keep) VALUES ('audit', '30 days')"},
	{"rate_limit_retention:what_must_be_audit_or_metrics_of_minute_hour_or_day",
		"INSERT INTO rate_limit_retention (what, keep) VALUES ('metrics', '30 days')"},
	{"rate_limit_retention:keep_must_be_1_day_or_more", "UPDATE rate_limit_retention SET keep = '23 h'"},
}

// Each constraint refuses what it should, and its name, which the error has, says what is
// wrong. The table above has all of them.
func TestWrongRowsAreRefusedByName(t *testing.T) {
	s := newSite(t)
	s.exec(`INSERT INTO rate_limit_rules (name) VALUES ('r');
		INSERT INTO rate_limit_rule_limits (rule, name, events, per) VALUES ('r', 'l', 10, '1 h');
		INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('r', 'l', 'ann', 5);
		INSERT INTO rate_limit_bans (user_id) VALUES ('ann')`)
	tested := make(map[string]bool)
	for _, r := range refusals {
		name := r.constraint[strings.Index(r.constraint, ":")+1:]
		tested[r.constraint] = true
		failure := s.fails(r.sql)
		// A time zone that the server does not have is an error of the function that looks for it.
		if name == "time_zone_must_be_known_to_the_server" {
			if !strings.Contains(failure.Message, `time zone "Europe/Berlyn" not recognized`) {
				t.Errorf("%s: %s", r.sql, failure.Message)
			}
		} else if failure.ConstraintName != name || !strings.Contains(failure.Message, name) {
			t.Errorf("%s: %s (constraint %q), want the constraint %q", r.sql, failure.Message,
				failure.ConstraintName, name)
		}
	}
	for _, name := range strings.Fields(s.text(`SELECT CASE WHEN c.conname LIKE 'rate\_limit\_%' THEN c.conname ELSE c.conrelid::regclass || ':' || c.conname END
		FROM pg_constraint c WHERE c.conrelid::regclass::text LIKE 'rate\_limit\_%' AND c.contype NOT IN ('n', 't')
		AND (c.conparentid <> 0 OR c.coninhcount = 0)
		AND c.conrelid::regclass::text NOT IN ('rate_limit_ephemeral', 'rate_limit_durable')`)) {
		if !tested[name] {
			t.Errorf("no command here breaks the constraint %s", name)
		}
	}
}

// All that the documentation promises is accepted.
func TestRightRowsAreAccepted(t *testing.T) {
	s := newSite(t)
	s.exec(`INSERT INTO rate_limit_rules (name, family, priority, hosts, paths, methods, networks, tiers, count_by, valid, status, retry_after) VALUES
		('a', 'f', 1, '{api.example.com,*.example.com,localhost,[::1]}', '{/,/*,/u/*/files,/api/v1/*}', '{GET,delete}', '{10.0.0.0/8,::1/128}', '{free}',
			'{user,key|tier,ip|ip/64|header:X-B,host,route,header:X-Org}', '[2026-11-27,2026-11-28)', 402, '90 s'),
		('b', 'f', 2, NULL, NULL, NULL, NULL, NULL, '{all}', '(,)', NULL, NULL), ('c', NULL, 1, NULL, NULL, NULL, NULL, NULL, '{ip}', '(,)', NULL, NULL),
		('d', NULL, 1, NULL, NULL, NULL, NULL, NULL, '{ip}', '(,)', NULL, NULL);
		INSERT INTO rate_limit_rule_limits (rule, name, algorithm, events, per, calendar, time_zone, burst, on_exceed) VALUES
		('a', 'unlimited', 'sliding_window', NULL, '36525 days', NULL, NULL, NULL, 'refuse'), ('a', 'none', 'gcra', 0, '1 s', NULL, NULL, NULL, 'refuse'),
		('a', 'log', 'sliding_log', 1000, '1 ms', NULL, NULL, NULL, 'refuse'), ('a', 'bucket', 'token_bucket', 1000, '1 h', NULL, NULL, 20, 'refuse'),
		('a', 'month', 'fixed_window', 1000, NULL, 'month', 'America/Argentina/Buenos_Aires', NULL, 'overage');
		INSERT INTO rate_limit_overrides (rule, limit_name, user_id, valid) VALUES ('a', 'log', 'ann', '(,)'), ('a', 'log', 'ann', '[2026-11-27,2026-11-28)');
		INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events, burst) VALUES ('a', 'bucket', 'ann', NULL, 5), ('a', 'none', 'ann', 5, 9), ('a', 'month', 'ann', 0, NULL);
		INSERT INTO rate_limit_rule_limits (rule, name, per) VALUES ('b', 'l', '1 s'), ('c', 'l', '1 s'), ('d', 'l', '1 s');
		UPDATE rate_limit_rules SET name = 'renamed' WHERE name = 'a'; UPDATE rate_limit_rules SET name = 'a' WHERE name = 'renamed';
		-- Two rules of a family change places in one transaction.
		BEGIN; SET CONSTRAINTS ALL DEFERRED; UPDATE rate_limit_rules SET priority = 3 - priority WHERE family = 'f'; COMMIT;`)
	s.want("SELECT name, priority FROM rate_limit_rules WHERE family = 'f' ORDER BY priority", "b 1\na 2")
}
