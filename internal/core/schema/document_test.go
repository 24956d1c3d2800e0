package schema_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// document applies a document, and returns what differed, each difference on a line.
func (s *site) document(document string, options string) (string, error) {
	s.t.Helper()
	var text *string
	err := s.conn.QueryRow(context.Background(),
		"SELECT string_agg(concat_ws(' ', a.section, a.name, a.what, a.before, a.after), E'\n') FROM "+
			"rate_limit_apply($1::text::jsonb"+options+") a",
		document).Scan(&text)
	if err != nil || text == nil {
		return "", err
	}
	return *text, nil
}

const twoPlans = `{"tiers": [{"tier": "free", "rank": "1"}, {"tier": "pro", "rank": 2}],
	"rules": [{"name": "free", "family": "plan", "priority": 700, "tiers": ["free"], "limits": [{"name": "per_hour", "events": 1000, "per": "1h", "algorithm": "token_bucket", "burst": 20},
			{"name": "per_month", "events": "unlimited", "calendar": "month", "algorithm": "fixed_window"}]},
		{"name": "pro", "family": "plan", "priority": 600, "tiers": ["pro"], "limits": [{"name": "per_hour", "events": 5000, "per": "60m"}]}],
	"overrides": [{"rule": "free", "limit_name": "per_hour", "tier": "pro", "events": 1500, "burst": 30, "valid": "[2026-11-27T01:00:00+01:00,)"}]}`

// Apply makes what differs, returns each difference once, and leaves what the document does not have,
// unless it is to prune.
func TestApplyMakesWhatDiffers(t *testing.T) {
	s := open(t, schema.File)
	override := `free/per_hour tier pro valid ["2026-11-27 00:00:00+00",)`
	all := `tiers free created {"rank": 1, "tier": "free"}
tiers pro created {"rank": 2, "tier": "pro"}
rules free created {"name": "free", "tiers": ["free"], "family": "plan", "priority": 700}
rules pro created {"name": "pro", "tiers": ["pro"], "family": "plan", "priority": 600}
limits free/per_hour created {"per": "1h", "name": "per_hour", "rule": "free", "burst": 20, "events": 1000, "algorithm": "token_bucket"}
limits free/per_month created {"name": "per_month", "rule": "free", "events": "unlimited", "calendar": "month", "algorithm": "fixed_window"}
limits pro/per_hour created {"per": "1h", "name": "per_hour", "rule": "pro", "events": 5000}
overrides ` + override + ` created {"rule": "free", "tier": "pro", "burst": 30, "valid": "[\"2026-11-27 00:00:00+00\",)", "events": 1500, "limit_name": "per_hour"}`
	swapped := strings.NewReplacer("700", "600", "600", "700", `"token_bucket", "burst": 20`,
		`"sliding_window"`, `, "burst": 30`, "", `"rank": 2}`,
		`"rank": 2}, {"tier": "anonymous", "comment": "nobody"}`).Replace(twoPlans)
	swap := `tiers anonymous rank -1 0
tiers anonymous comment "requests with neither an API key nor a user" "nobody"
rules free priority 700 600
rules pro priority 600 700
limits free/per_hour burst 20
limits free/per_hour algorithm "token_bucket" "sliding_window"
overrides ` + override + ` burst 30`
	for _, step := range []struct{ sql, document, options, want string }{
		{"", twoPlans, ", dry_run => true", all},
		{"", twoPlans, "", all},
		{"", twoPlans, ", true", ""},
		// Two rules of a family change places, and a limit and its override become another algorithm,
		// which neither could alone.
		{"CREATE TABLE made AS SELECT name, created_at FROM rate_limit_rules", swapped, "", swap},
		{"", swapped, ", true", ""},
		{"DO $$ BEGIN ASSERT (SELECT count(*) FROM made JOIN rate_limit_rules USING (name, created_at)) = " +
			"2; END $$", `{"rules": [{"name": "pro", "limits": [{"name": "per_hour", "events": 5, "per": "1h"}]}]}`, "",
			"rules pro tiers [\"pro\"]\nrules pro family \"plan\"\nrules pro priority 700 100\nlimits " +
				"pro/per_hour events 5000 5"},
		// Sections that the document lacks stay, and overrides for a user are of the section of users.
		{`INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'pro'); INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('pro', 'per_hour', 'ann', 8)`,
			`{"overrides": []}`, ", true", "overrides " + override +
				` deleted {"rule": "free", "tier": "pro", "valid": "[\"2026-11-27 00:00:00+00\",)", "events": 1500, "limit_name": "per_hour"}`},
		{"", `{"tiers": [{"tier": "pro", "rank": 2}, {"tier": "free", "rank": 1}], "rules": []}`,
			", false", ""},
		{"", `{"users": [], "overrides": []}`, ", true, true",
			"users ann deleted {\"tier\": \"pro\", \"user_id\": \"ann\"}\noverrides pro/per_hour user_id " +
				"ann deleted {\"rule\": \"pro\", \"events\": 8, \"user_id\": \"ann\", \"limit_name\": " +
				"\"per_hour\"}"},
		{"", `{"rules": [{"name": "pro", "limits": [{"name": "per_hour", "events": 5, "per": "1h"}]}], "tiers": [{"tier": "pro", "rank": 2}]}`, ", true",
			`tiers free deleted {"rank": 1, "tier": "free"}
rules free deleted {"name": "free", "tiers": ["free"], "family": "plan", "priority": 600}
limits free/per_hour deleted {"per": "1h", "name": "per_hour", "rule": "free", "events": 1000}
limits free/per_month deleted {"name": "per_month", "rule": "free", "events": "unlimited", "calendar": "month", "algorithm": "fixed_window"}`},
	} {
		if step.sql != "" {
			s.exec(step.sql)
		}
		before := s.text("SELECT count(*) FROM rate_limit_changes")
		got, err := s.document(step.document, step.options)
		if err != nil || got != step.want {
			t.Fatalf("%s%s: %v\n%s\nwant\n%s", step.document, step.options, err, got, step.want)
		}
		if after := s.text("SELECT count(*) FROM rate_limit_changes"); (before == after) != (got == "" ||
			strings.Contains(step.options, "dry") || strings.HasSuffix(step.options, "true, true")) {
			t.Errorf("%s%s: %s changes before, %s after", step.document, step.options, before, after)
		}
	}
	s.want("SELECT user_id, events FROM rate_limit_overrides", "ann 8")
}

// A document that cannot be is refused as a whole. The error names the row and the field, what it
// holds, and what it must be.
func TestApplyRefuses(t *testing.T) {
	s := newSite(t)
	if _, err := s.document(twoPlans, ""); err != nil {
		t.Fatal(err)
	}
	const key = "sk-live-0123456789abcdef"
	before := s.text(contentSQL)
	limit := func(fields string) string {
		return `{"rules": [{"name": "x", "limits": [{"name": "l", "events": 1, "per": "1s"` + fields + `}]}]}`
	}
	rule := func(fields string) string {
		return `{"tiers": [{"tier": "new"}], "rules": [{"name": "other", "limits": [{"name": "l", "events": 1, "per": "1s"}]},
			{"name": "x", "limits": [{"name": "l", "events": 1, "per": "1s"}], ` + fields + `}]}`
	}
	for document, want := range map[string]string{
		`null`:                     "policy: unknown: must be one of tiers, users, keys, rules, overrides",
		`[]`:                       "policy: unknown: must be one of",
		`{"rule": []}`:             "rule: unknown: must be one of tiers, users, keys, rules, overrides",
		`{"rules": {"name": "x"}}`: "rules: must be a list of rows",
		`{"rules": ["x"]}`:         "rules: must be a list of rows",
		`{"rules": [{"name": "x", "limits": [1]}]}`:                "rules: must be a list of rows",
		rule(`"priorty": 5`):                                       `rule "x": priorty: unknown: must be one of name, family, priority, mode,`,
		rule(`"priority": "high"`):                                 `rule "x": priority: "high": must be of the type bigint`,
		rule(`"cost": 1.5`):                                        `rule "x": cost: 1.5: must be of the type bigint`,
		rule(`"valid": "2026-11-27"`):                              `rule "x": valid: "2026-11-27": must be of the type tstzrange`,
		rule(`"networks": ["10.0.0.1/8"]`):                         `rule "x": networks: ["10.0.0.1/8"]: must be of the type cidr[]`,
		rule(`"mode": "enforced"`):                                 `rule "x": mode: "enforced": must be enforce or shadow or off`,
		rule(`"tiers": "free"`):                                    `rule "x": tiers: "free": must be a list, as in [a, b]`,
		rule(`"comment": {"a": 1}`):                                `rule "x": comment: {"a": 1}: must be one value`,
		rule(`"comment": ["a"]`):                                   `rule "x": comment: ["a"]: must be one value`,
		rule(`"tiers": []`):                                        `rule "x": tiers: []: must be null or names of tiers`,
		rule(`"status": 200`):                                      `rule "x": status: 200: must be 400 to 599`,
		rule(`"tiers": ["fre"]`):                                   `rule "x": tiers: "fre": must be in the section tiers, or in rate_limit_tiers`,
		rule(`"paths": ["/a//b"]`):                                 `rule "x": paths: "/a//b": must be a path such as /login`,
		rule(`"action": "block"`):                                  `rule "x": action: 'block': must be limit for a rule with limits`,
		rule(`"family": "plan", "priority": 700`):                  `rule "free": priority: 700: must be another than that of the rule "x", which is of the same family`,
		rule(`"retry_after": "1 month"`):                           `rule "x": retry_after: "1 months": must be 0 to 36525 days without months`,
		`{"rules": [{"name": "x", "mode": "off"}, {"name": "x"}]}`: `rule "x": must be given once`,
		`{"rules": [{"mode": "off"}]}`:                             `rule "": name: missing: must be given`,
		`{"rules": [{"name": "y"}]}`:                               `rule "y": limits: missing: a rule that limits must have one or more of them`,
		limit(`, "bursts": 3`):                                     `limit "x/l": bursts: unknown: must be one of rule, name, algorithm,`,
		limit(`, "burst": 3`):                                      `limit "x/l": burst: 3: needs token bucket or gcra`,
		limit(`, "per": null`):                                     `limit "x/l": exactly one of per and calendar must be given`,
		limit(`, "events": null`):                                  `limit "x/l": events: missing: must be given`,
		limit(`, "algorithm": "bucket"`):                           `limit "x/l": algorithm: "bucket": must be one that the documentation names`,
		`{"overrides": [{"rule": "free", "limit_name": "per_day", "tier": "pro", "events": 1}]}`:             `override "free/per_day tier pro": rule and limit name must be in rate limit rule limits: Key (rule, limit_name)=(free, per_day) is not present`,
		`{"overrides": [{"rule": "free", "limit_name": "per_hour", "tier": "gold", "events": 1}]}`:           `override "free/per_hour tier gold": tier: "gold": must be in rate_limit_tiers`,
		`{"overrides": [{"rule": "pro", "limit_name": "per_hour", "tier": "pro", "events": 1, "burst": 3}]}`: `override "pro/per_hour tier pro": override with burst must be of token bucket or gcra`,
		`{"overrides": [{"rule": "pro", "limit_name": "per_hour", "key_id": "` + key +
			`", "events": 1}]}`: `": must be in rate_limit_api_keys`,
		`{"users": [{"user_id": "bob", "tier": "free"}, {"user_id": "carl", "tier": "free"}, {"user_id": "dora", "tier": "gold"}]}`: `user "dora": tier: "gold": must be in rate_limit_tiers`,
		`{"keys": [{"digest": "` + key +
			`", "user_id": "ann"}]}`: `digest must be a sha256 of 32 bytes`,
		`{"keys": [{"digest": "` + key + `", "user_id": "ann", "hint": ["` + key +
			`"]}]}`: `hint: must be one value`,
		`{"keys": [{"digest": "\\x` + strings.Repeat("ab", 32) + `", "user_id": "ann", "hint": "` + key +
			`"}]}`: `hint must not be long enough to be a key`,
	} {
		_, err := s.document(document, "")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), key) {
			t.Errorf("%s:\n%v\nwant %s", document, err, want)
		}
	}
	if _, err := s.document(`{"tiers": []}`, ", true"); err == nil ||
		!strings.Contains(err.Error(),
			`tier "free": tier must be in rate limit tiers: Key (tier)=(free) is still referenced from table`) {
		t.Errorf("a tier that is used: %v", err)
	}
	if after := s.text(contentSQL); after != before {
		t.Errorf("the policy has become\n%s\nwas\n%s", after, before)
	}
}

// content is all that the tables of the policy have, without what is about the rows.
const contentSQL = `SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") FROM (
	SELECT 'tier ' || to_jsonb(t)::text AS line FROM rate_limit_tiers t
	UNION ALL SELECT 'user ' || (to_jsonb(t) - '{created_at,updated_at}'::text[])::text FROM rate_limit_users t
	UNION ALL SELECT 'key ' || (to_jsonb(t) - '{id,replaced_by,counted_as,created_at}'::text[])::text || concat(n.digest, c.digest) FROM rate_limit_api_keys t LEFT JOIN rate_limit_api_keys n ON n.id = t.replaced_by LEFT JOIN rate_limit_api_keys c ON c.id = t.counted_as
	UNION ALL SELECT 'rule ' || (to_jsonb(t) - '{created_at,created_by,updated_at}'::text[])::text FROM rate_limit_rules t
	UNION ALL SELECT 'limit ' || to_jsonb(t)::text FROM rate_limit_rule_limits t
	UNION ALL SELECT 'override ' || (to_jsonb(t) - '{id,key_id,created_at,created_by}'::text[])::text || coalesce(n.digest::text, '') FROM rate_limit_overrides t LEFT JOIN rate_limit_api_keys n ON n.id = t.key_id) AS all_rows`

// A document makes the same policy in an empty database, and is made from there again. Where it comes
// from, it changes nothing.
func TestADocumentIsTheSameElsewhere(t *testing.T) {
	s := open(t, schema.File)
	empty := func() {
		s.exec("TRUNCATE rate_limit_tiers, rate_limit_users, rate_limit_api_keys, rate_limit_rules, " +
			"rate_limit_rule_limits, rate_limit_overrides, rate_limit_bans")
		s.exec("INSERT INTO rate_limit_tiers (tier, rank, comment) VALUES ('anonymous', -1, 'requests with " +
			"neither an API key nor a user')")
	}
	const documentSQL = "SELECT rate_limit_policy(true)::text"
	rapid.Check(t, func(t *rapid.T) {
		empty()
		for _, statement := range randomPolicy(t) {
			// The database refuses what cannot be.
			_, _ = s.conn.Exec(context.Background(), statement.sql, statement.args...)
		}
		content, document := s.text(contentSQL), s.text(documentSQL)
		for _, kind := range []string{"rule {", "override {", "key {"} {
			if !strings.Contains(content, kind) {
				t.Fatalf("the policy has no %s:\n%s", kind, content)
			}
		}
		if changes, err := s.document(document, ", true"); err != nil || changes != "" {
			t.Fatalf("the document changes where it comes from %s, %v:\n%s", changes, err, document)
		}
		empty()
		if _, err := s.document(document, ""); err != nil {
			t.Fatalf("an empty database refuses it: %v\n%s", err, document)
		}
		if again := s.text(documentSQL); again != document {
			t.Fatalf("made again it is\n%s\nwant\n%s", again, document)
		}
		if again := s.text(contentSQL); again != content {
			t.Fatalf("the rows become\n%s\nwant\n%s", again, content)
		}
	})
}

// What a document has of 10,000 rules is read and compared in seconds, and nothing is written.
func TestManyRulesAreADocument(t *testing.T) {
	if testing.Short() {
		t.Skip("it asserts a time")
	}
	s := newSite(t)
	s.exec(`INSERT INTO rate_limit_rules (name, priority, paths) SELECT 'r' || i, i, ARRAY['/a/' || i] FROM generate_series(1, 10000) AS i;
		INSERT INTO rate_limit_rule_limits (rule, name, events, per) SELECT name, 'per_hour', priority, '1 h' FROM rate_limit_rules`)
	changes := s.text("SELECT max(seq) FROM rate_limit_changes")
	began := time.Now()
	if n := s.text("SELECT count(*) FROM rate_limit_apply(rate_limit_policy(true), true)"); n != "0" {
		t.Errorf("there are %s differences", n)
	}
	t.Logf("%v", time.Since(began))
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	s.want("SELECT max(seq) FROM rate_limit_changes", changes)
}

type statement struct {
	sql  string
	args []any
}

// randomPolicy returns statements that make a policy. The database may refuse some.
func randomPolicy(t *rapid.T) []statement {
	var all []statement
	draw := func(texts ...string) string { return rapid.SampledFrom(texts).Draw(t, "text") }
	maybe := func(texts ...string) any {
		if rapid.Bool().Draw(t, "given") {
			return draw(texts...)
		}
		return nil
	}
	count := func(most int) int { return rapid.IntRange(0, most).Draw(t, "count") }
	number := func() any { return rapid.Int64Range(0, 2000).Draw(t, "number") }
	prose := func() any {
		if rapid.Bool().Draw(t, "given") {
			return strings.ReplaceAll(
				rapid.OneOf(rapid.String(),
					rapid.SampledFrom([]string{"", "null", "~", "no", "123", "1.5e3", "2026-11-27", " a ", "a: b",
						"- a", "# a", "a\nb\n", "\n a", "\t", "'", `"`, "\u2028", "\ufeff", "\x7f", "{a}", "*a", "&a",
						"!a", "%", "@", "<<"})).Draw(t, "prose"), "\x00", "")
		}
		return nil
	}
	add := func(sql string, args ...any) { all = append(all, statement{sql, args}) }
	times := []string{"2026-11-27", "2026-11-27 12:34:56.123456+02", "1999-01-01 00:00:00.5", "infinity"}
	ranges := []string{"[2026-01-01,)", "(,)", "[2026-01-01 10:00:00.000001,2026-02-01)", "(,2027-01-01)"}
	durations := []string{"1 ms", "1500 microseconds", "90 s", "1 h", "24 h", "36 h", "876600 h"}
	tiers := []string{"anonymous", "free", "no", "1", "gold:x"}
	for _, tier := range tiers[1:] {
		add("INSERT INTO rate_limit_tiers (tier, rank, comment) VALUES ($1, $2, $3)", tier, number(), prose())
	}
	// These the database takes.
	add("INSERT INTO rate_limit_users (user_id, tier) VALUES ('acme', 'free')")
	add("INSERT INTO rate_limit_api_keys (digest, user_id) VALUES (sha256('acme'), 'acme')")
	add("SELECT rate_limit_rule('sure', per_hour => 10)")
	add("INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('sure', " +
		"'per_hour', 'acme', 20)")
	users := []string{"ann", "", "null", "a\nb", "käthe", "x/y", "0"}
	for range count(5) {
		add("INSERT INTO rate_limit_users (user_id, tier, tier_until, period_start, time_zone, comment) "+
			"VALUES ($1, $2, $3::text::timestamptz, $4::text::date, $5, $6)",
			draw(users...), draw(tiers...), draw(times...), maybe("2026-01-31", "1900-01-01"),
			draw("UTC", "Europe/Berlin"), prose())
	}
	for i := range count(4) {
		add(`INSERT INTO rate_limit_api_keys (digest, hint, name, user_id, expires_at, revoked_at, tier, replaced_by, counted_as) VALUES (sha256($1::text::bytea), $2, $3, $4, $5::text::timestamptz, $6::text::timestamptz, $7,
			(SELECT max(id) FROM rate_limit_api_keys), (SELECT min(id) FROM rate_limit_api_keys))`, fmt.Sprint(i), maybe("prl_4cQx"), maybe("production", "123", "null"), draw(users...), draw(times...), maybe(times[:3]...), maybe(tiers...))
	}
	for i := range count(6) {
		rule := []string{"plan", "1", "null", "a.b-c_d", "true", "-"}[i]
		list := func(texts ...string) any {
			if rapid.Bool().Draw(t, "given") {
				return rapid.SliceOfNDistinct(rapid.SampledFrom(texts), 1, 3, rapid.ID).Draw(t, "list")
			}
			return nil
		}
		limited := rapid.IntRange(0, 4).Draw(t, "limits")
		add(`INSERT INTO rate_limit_rules (name, family, priority, mode, action, hosts, paths, methods, networks, tiers, count_by, without_header, valid, cost, status, message, retry_after, comment, settle)
			VALUES ($1, $2, $3, $4, 'block', $5, $6, $7, $8::text[]::cidr[], $9, coalesce($10::text[], '{user}'), $11, $12::text::tstzrange, $13, $14::text::int, $15, $16::text::interval, $17, $18)`,
			rule, maybe("plan", "no"), rapid.Int64Range(-3, 3).Draw(t, "priority"),
			draw("enforce", "shadow", "off"), list("a.test", "*.b.test", "[::1]"),
			list("/", "/a/*", "/u/*/f:#"),
			list("GET", "POST", "NO"), list("10.0.0.0/8", "::ffff:10.1.0.0/112", "2001:db8::/32",
				"::1.2.3.4/128"), list(tiers[0], tiers[1], tiers[3]),
			list("ip", "key", "header:X-No", "host"), draw("share", "skip"), draw(ranges...),
			1+rapid.Int64Range(0, 5).Draw(t, "cost"), maybe("451", "503"), prose(),
			maybe("0", "30 s"), prose(), maybe("bytes", "status 401 403 = 1, else 0"))
		if limited == 0 {
			continue
		}
		sql := "WITH limiting AS (UPDATE rate_limit_rules SET action = 'limit' WHERE name = $1) "
		args := []any{rule}
		sql += "INSERT INTO rate_limit_rule_limits (rule, name, algorithm, events, per, calendar, " +
			"time_zone, burst, durable, on_exceed) VALUES ($1::text, 'first', 'sliding_window', 10, '1 h', " +
			"NULL, NULL, NULL, false, 'refuse')"
		add(sql, args...)
		for _, limit := range []string{"2", "no", "per_hour"}[:limited-1] {
			algorithm := draw("sliding_window", "fixed_window", "token_bucket", "sliding_log", "gcra")
			var events, per, calendar, zone, burst any = number(), draw(durations...), nil, nil, nil
			if count(3) == 0 {
				events = nil
			}
			switch algorithm {
			case "fixed_window":
				if rapid.Bool().Draw(t, "calendar") {
					per, calendar, zone = nil, draw("day", "week", "month", "year"), maybe("Europe/Berlin")
				}
			case "token_bucket", "gcra":
				burst = number()
			}
			add("INSERT INTO rate_limit_rule_limits (rule, name, algorithm, events, per, calendar, "+
				"time_zone, burst, durable, on_exceed) VALUES ($1, $2, $3, $4, $5::text::interval, $6, $7, "+
				"$8, $9, $10)",
				rule, limit, algorithm, events, per, calendar, zone, burst, rapid.Bool().Draw(t, "durable"),
				draw("refuse", "overage"))
		}
		for range count(4) {
			holder := draw("tier", "user_id", "key_id")
			value := map[string]string{"tier": "'" + draw(tiers...) + "'",
				"user_id": "(SELECT min(user_id) FROM rate_limit_users)",
				"key_id":  "(SELECT max(id) FROM rate_limit_api_keys)"}[holder]
			add("INSERT INTO rate_limit_overrides (rule, limit_name, "+holder+", events, burst, valid, "+
				"reason) VALUES ($1, $2, "+value+", $3::text::bigint, $4::text::bigint, "+
				"$5::text::tstzrange, $6)",
				rule, draw("first", "2", "no"), maybe("0", "77"), maybe("5"), draw(ranges...), prose())
		}
	}
	return all
}
