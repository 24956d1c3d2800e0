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

// content is all that the tables of the policy have, without what is about the rows.
const contentSQL = `SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") FROM (
	SELECT 'tier ' || to_jsonb(t)::text AS line FROM rate_limit_tiers t
	UNION ALL SELECT 'user ' || (to_jsonb(t) - '{created_at,updated_at}'::text[])::text
		FROM rate_limit_users t
	UNION ALL SELECT 'key ' || (to_jsonb(t) - '{id,replaced_by,counted_as,created_at}'::text[])::text
		|| concat(n.digest, c.digest) FROM rate_limit_api_keys t
		LEFT JOIN rate_limit_api_keys n ON n.id = t.replaced_by
		LEFT JOIN rate_limit_api_keys c ON c.id = t.counted_as
	UNION ALL SELECT 'rule ' || (to_jsonb(t) - '{created_at,created_by,updated_at}'::text[])::text
		FROM rate_limit_rules t
	UNION ALL SELECT 'limit ' || to_jsonb(t)::text FROM rate_limit_rule_limits t
	UNION ALL SELECT 'override ' || (to_jsonb(t) - '{id,key_id,created_at,created_by}'::text[])::text
		|| coalesce(n.digest::text, '') FROM rate_limit_overrides t
		LEFT JOIN rate_limit_api_keys n ON n.id = t.key_id) AS all_rows`

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
	s.exec(`INSERT INTO rate_limit_rules (name, priority, paths) SELECT 'r' || i, i, ARRAY['/a/' || i]
		FROM generate_series(1, 10000) AS i;
		INSERT INTO rate_limit_rule_limits (rule, name, events, per) SELECT name, 'per_hour', priority, '1 h'
			FROM rate_limit_rules`)
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
					rapid.SampledFrom([]string{"", "null", "~", "no", "123", "1.5e3", "2026-11-27", " a ",
						"a: b",
						"- a", "# a", "a\nb\n", "\n a", "\t", "'", `"`, "\u2028", "\ufeff", "\x7f", "{a}",
						"*a", "&a",
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
		add(`INSERT INTO rate_limit_api_keys (digest, hint, name, user_id, expires_at, revoked_at, tier,
			replaced_by, counted_as) VALUES (sha256($1::text::bytea), $2, $3, $4, $5::text::timestamptz,
			$6::text::timestamptz, $7,
			(SELECT max(id) FROM rate_limit_api_keys), (SELECT min(id) FROM rate_limit_api_keys))`,
			fmt.Sprint(i), maybe("prl_4cQx"), maybe("production", "123", "null"), draw(users...),
			draw(times...), maybe(times[:3]...), maybe(tiers...))
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
		add(`INSERT INTO rate_limit_rules (name, family, priority, mode, action, hosts, paths, methods,
			networks, tiers, count_by, without_header, valid, cost, status, message, retry_after, comment,
			settle)
			VALUES ($1, $2, $3, $4, 'block', $5, $6, $7, $8::text[]::cidr[], $9, coalesce($10::text[],
				'{user}'), $11, $12::text::tstzrange, $13, $14::text::int, $15, $16::text::interval, $17,
				$18)`,
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
