package admin_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// policyBench is a database with a policy.
type policyBench struct {
	testing.TB
	db   *admin.Database
	conn *pgx.Conn
}

func newPolicyBench(t testing.TB) *policyBench {
	t.Helper()
	ctx := context.Background()
	dsn := migrated(t)
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	conn := cluster.Connect(t, dsn)
	t.Cleanup(func() { conn.Close(ctx) })
	return &policyBench{t, db, conn}
}

func (b *policyBench) sql(sql string) {
	b.Helper()
	if _, err := b.conn.Exec(context.Background(), sql); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

func (b *policyBench) text(sql string) string {
	b.Helper()
	var text string
	if err := b.conn.QueryRow(context.Background(), sql).Scan(&text); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	return text
}

// empty makes the policy that of a new database.
func (b *policyBench) empty() {
	b.sql("TRUNCATE rate_limit_tiers, rate_limit_users, rate_limit_api_keys, rate_limit_rules, rate_limit_rule_limits, rate_limit_overrides, rate_limit_bans")
	b.sql("INSERT INTO rate_limit_tiers (tier, rank, comment) VALUES ('anonymous', -1, 'requests with neither an API key nor a user')")
}

func (b *policyBench) export() string {
	b.Helper()
	found, _, err := b.db.ExportPolicy(context.Background(), true)
	if err != nil {
		b.Fatal(err)
	}
	file, err := found.Write()
	if err != nil {
		b.Fatal(err)
	}
	return string(file)
}

func (b *policyBench) apply(file string, o admin.PolicyOptions) ([]policyfile.Difference, error) {
	b.Helper()
	want, err := policyfile.Parse([]byte(file))
	if err != nil {
		return nil, err
	}
	plan, err := b.db.ApplyPolicy(context.Background(), want, &o)
	if err != nil {
		return nil, err
	}
	return plan.Changes, nil
}

// texts are changes as texts, without the rows that stay.
func texts(changes []policyfile.Difference) []string {
	var all []string
	for _, c := range changes {
		if c.Outcome != policyfile.Kept {
			all = append(all, strings.TrimSpace(c.Kind+" "+c.Name+" "+c.Outcome+" "+strings.Join(c.What, ", ")))
		}
	}
	return all
}

// content is all that the tables of the policy have, without what is about the rows.
const contentSQL = `SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") FROM (
	SELECT 'tier ' || to_jsonb(t)::text AS line FROM rate_limit_tiers t
	UNION ALL SELECT 'user ' || (to_jsonb(t) - '{created_at,updated_at}'::text[])::text FROM rate_limit_users t
	UNION ALL SELECT 'key ' || (to_jsonb(t) - '{id,replaced_by,created_at}'::text[])::text || coalesce(n.digest::text, '') FROM rate_limit_api_keys t LEFT JOIN rate_limit_api_keys n ON n.id = t.replaced_by
	UNION ALL SELECT 'rule ' || (to_jsonb(t) - '{created_at,created_by,updated_at}'::text[])::text FROM rate_limit_rules t
	UNION ALL SELECT 'limit ' || to_jsonb(t)::text FROM rate_limit_rule_limits t
	UNION ALL SELECT 'override ' || (to_jsonb(t) - '{id,key_id,created_at,created_by}'::text[])::text || coalesce(n.digest::text, '') FROM rate_limit_overrides t LEFT JOIN rate_limit_api_keys n ON n.id = t.key_id) AS all_rows`

// An exported file makes the same policy in an empty database, and is exported from there again. Where
// it comes from, it changes nothing.
func TestAnExportedPolicyIsTheSameElsewhere(t *testing.T) {
	b := newPolicyBench(t)
	rapid.Check(t, func(t *rapid.T) {
		b.empty()
		for _, statement := range randomPolicy(t) {
			// The database refuses what cannot be.
			_, _ = b.conn.Exec(context.Background(), statement.sql, statement.args...)
		}
		content, file := b.text(contentSQL), b.export()
		for _, kind := range []string{"rule {", "override {", "key {"} {
			if !strings.Contains(content, kind) {
				t.Fatalf("the policy has no %s:\n%s", kind, content)
			}
		}
		changes, err := b.apply(file, admin.PolicyOptions{Users: true, Prune: true})
		if err != nil || len(changes) > 0 {
			t.Fatalf("the file changes where it comes from %q, %v:\n%s", texts(changes), err, file)
		}
		b.empty()
		if _, err := b.apply(file, admin.PolicyOptions{Users: true}); err != nil {
			t.Fatalf("an empty database refuses it: %v\n%s", err, file)
		}
		if again := b.export(); again != file {
			t.Fatalf("exported again it is\n%s\nwant\n%s", again, file)
		}
		if again := b.text(contentSQL); again != content {
			t.Fatalf("the rows become\n%s\nwant\n%s", again, content)
		}
	})
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
			return strings.ReplaceAll(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "null", "~", "no", "123", "1.5e3", "2026-11-27", " a ", "a: b", "- a", "# a", "a\nb\n", "\n a", "\t", "'", `"`, "\u2028", "\ufeff", "\x7f", "{a}", "*a", "&a", "!a", "%", "@", "<<"})).Draw(t, "prose"), "\x00", "")
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
	add("INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('sure', 'per_hour', 'acme', 20)")
	users := []string{"ann", "", "null", "a\nb", "käthe", "x/y", "0"}
	for range count(5) {
		add("INSERT INTO rate_limit_users (user_id, tier, tier_until, period_start, time_zone, comment) VALUES ($1, $2, $3::text::timestamptz, $4::text::date, $5, $6)",
			draw(users...), draw(tiers...), draw(times...), maybe("2026-01-31", "1900-01-01"), draw("UTC", "Europe/Berlin"), prose())
	}
	for i := range count(4) {
		add(`INSERT INTO rate_limit_api_keys (digest, hint, name, user_id, expires_at, revoked_at, tier, replaced_by) VALUES (sha256($1::text::bytea), $2, $3, $4, $5::text::timestamptz, $6::text::timestamptz, $7,
			(SELECT max(id) FROM rate_limit_api_keys))`, fmt.Sprint(i), maybe("prl_4cQx"), maybe("production", "123", "null"), draw(users...), draw(times...), maybe(times[:3]...), maybe(tiers...))
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
			rule, maybe("plan", "no"), rapid.Int64Range(-3, 3).Draw(t, "priority"), draw("enforce", "shadow", "off"), list("a.test", "*.b.test", "[::1]"), list("/", "/a/*", "/u/*/f:#"),
			list("GET", "POST", "NO"), list("10.0.0.0/8", "::ffff:10.1.0.0/112", "2001:db8::/32", "::1.2.3.4/128"), list(tiers[0], tiers[1], tiers[3]),
			list("ip", "key", "header:X-No", "host"), draw("share", "skip"), draw(ranges...), 1+rapid.Int64Range(0, 5).Draw(t, "cost"), maybe("451", "503"), prose(),
			maybe("0", "30 s"), prose(), maybe("bytes", "status 401 403 = 1, else 0"))
		if limited == 0 {
			continue
		}
		sql := "WITH limiting AS (UPDATE rate_limit_rules SET action = 'limit' WHERE name = $1) "
		args := []any{rule}
		sql += "INSERT INTO rate_limit_rule_limits (rule, name, algorithm, events, per, calendar, time_zone, burst, durable, on_exceed) VALUES ($1::text, 'first', 'sliding_window', 10, '1 h', NULL, NULL, NULL, false, 'refuse')"
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
			add("INSERT INTO rate_limit_rule_limits (rule, name, algorithm, events, per, calendar, time_zone, burst, durable, on_exceed) VALUES ($1, $2, $3, $4, $5::text::interval, $6, $7, $8, $9, $10)",
				rule, limit, algorithm, events, per, calendar, zone, burst, rapid.Bool().Draw(t, "durable"), draw("refuse", "overage"))
		}
		for range count(4) {
			holder := draw("tier", "user_id", "key_id")
			value := map[string]string{"tier": "'" + draw(tiers...) + "'", "user_id": "(SELECT min(user_id) FROM rate_limit_users)", "key_id": "(SELECT max(id) FROM rate_limit_api_keys)"}[holder]
			add("INSERT INTO rate_limit_overrides (rule, limit_name, "+holder+", events, burst, valid, reason) VALUES ($1, $2, "+value+", $3::text::bigint, $4::text::bigint, $5::text::tstzrange, $6)",
				rule, draw("first", "2", "no"), maybe("0", "77"), maybe("5"), draw(ranges...), prose())
		}
	}
	return all
}

// isLoaded checks that a column's field in memory is there.
func isLoaded(t *testing.T, table int, c *columns.Column) {
	row := map[int]any{columns.Rules: policy.Rule{}, columns.Limits: policy.RuleLimit{}, columns.Overrides: policy.Override{}}[table]
	if c.Load == "" {
		return
	}
	at := reflect.TypeOf(row)
	for name := range strings.SplitSeq(c.Load, ".") {
		if at.Kind() == reflect.Pointer {
			at = at.Elem()
		}
		field, found := at.FieldByName(name)
		if !found {
			t.Errorf("%s: %s has no field %s", c.Name, at, name)
			return
		}
		at = field.Type
	}
}

// A file names every column of the tables, but for those that are about the row. Fields that it lacks
// get the defaults of the tables.
func TestAFileHasEveryColumn(t *testing.T) {
	b := newPolicyBench(t)
	about := map[string][]string{
		"rate_limit_users": {"created_at", "updated_at"}, "rate_limit_api_keys": {"id", "created_at"},
		"rate_limit_rules": {"created_at", "created_by", "updated_at"}, "rate_limit_overrides": {"id", "created_at", "created_by"},
	}
	for i := range policyfile.Tables {
		table := &policyfile.Tables[i]
		got := slices.Clone(about[table.Name])
		for _, c := range table.Columns {
			got = append(got, c.Name)
		}
		for _, c := range table.Columns {
			if kind := b.text("SELECT replace(format_type(atttypid, atttypmod), 'timestamp with time zone', 'timestamptz') FROM pg_attribute WHERE attrelid = '" + table.Name + "'::regclass AND attname = '" + c.Name + "'"); kind != c.Kind.SQL() {
				t.Errorf("%s.%s is described as %s, and is %s", table.Name, c.Name, c.Kind.SQL(), kind)
			}
			if c.Max > 0 {
				name := fmt.Sprintf("%s_must_be_%d_to_%d", c.Name, c.Min, c.Max)
				if b.text("SELECT count(*) FROM pg_constraint WHERE conrelid = '"+table.Name+"'::regclass AND conname = '"+name+"'") != "1" {
					t.Errorf("%s has no constraint %s", table.Name, name)
				}
			}
			isLoaded(t, i, &c)
		}
		slices.Sort(got)
		want := b.text("SELECT string_agg(attname, ' ' ORDER BY attname COLLATE \"C\") FROM pg_attribute WHERE attrelid = '" + table.Name + "'::regclass AND attnum > 0 AND NOT attisdropped")
		if strings.Join(got, " ") != want {
			t.Errorf("%s: the file has %q, the table %s", table.Name, got, want)
		}
	}
	b.sql("INSERT INTO rate_limit_tiers (tier) VALUES ('t'); INSERT INTO rate_limit_users (user_id, tier) VALUES ('u', 't'); INSERT INTO rate_limit_api_keys (digest, user_id) VALUES (sha256('k'), 'u')")
	b.sql("INSERT INTO rate_limit_rules (name) VALUES ('r'); INSERT INTO rate_limit_rule_limits (rule, name, events, per) VALUES ('r', 'l', 1, '1 h'); INSERT INTO rate_limit_overrides (rule, limit_name, tier) VALUES ('r', 'l', 't')")
	if got, want := b.export(), `tiers:
  - tier: anonymous
    rank: -1
    comment: requests with neither an API key nor a user
  - tier: t
users:
  - user: u
    tier: t
keys:
  - digest: 8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a
    user: u
rules:
  - name: r
    limits:
      - name: l
        events: 1
        per: 1h
overrides:
  - rule: r
    limit: l
    tier: t
    events: unlimited
`; got != want {
		t.Errorf("exported is\n%s\nwant\n%s", got, want)
	}
}
