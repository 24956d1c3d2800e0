package policy_test

import (
	"context"
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// rate_limit_explain says of random requests what Decide decides: the bans, the exempt and the
// block rules, the limits that apply, and their amounts.
func TestExplainAgrees(t *testing.T) {
	s := newSite(t)
	random := rand.New(rand.NewSource(1))
	pick := func(choices ...string) string { return choices[random.Intn(len(choices))] }
	s.user("ann", "free")
	s.user("bob", "pro")
	s.exec("UPDATE rate_limit_api_keys SET revoked_at = '2020-01-01' WHERE user_id = 'bob'")
	for i := range 120 {
		action := pick("limit", "limit", "limit", "limit", "limit", "limit", "limit", "limit", "block", "exempt")
		condition := func(column, values string) string {
			if random.Intn(3) > 0 {
				return ""
			}
			return ", " + column + " => '{" + values + "}'"
		}
		sql := fmt.Sprintf("SELECT rate_limit_rule('r%d', action => '%s', mode => '%s', priority => %d", i, action, pick("enforce", "enforce", "shadow", "off"), i) +
			condition("tiers", pick("free", "pro", "anonymous", "free,pro")) + condition("hosts", pick("a.example.com", "*.example.com", "example.com")) +
			condition("methods", pick("GET", "post", "GET,POST")) + condition("networks", pick("192.0.2.0/24", "192.0.2.7/32", "2001:db8::/32")) +
			condition("paths", pick("/", "/*", "/api/*", "/api/*/x", "/api/*/*", "/API/*")) + condition("count_by", pick("user", "key", "ip", "host", "all", "user,host", "header:X-A", "route"))
		if random.Intn(2) == 0 {
			sql += ", family => '" + pick("f", "g") + "'"
		}
		if random.Intn(2) == 0 {
			sql += ", without_header => 'skip'"
		}
		if random.Intn(8) == 0 {
			sql += ", valid => '" + pick("(,2020-01-01)", "[2020-01-01,2999-01-01)") + "'"
		}
		if action == "limit" {
			sql += fmt.Sprintf(", per_hour => %d, per_day => %d", 1+i, 1000+i)
		} else if random.Intn(3) > 0 {
			sql += ", networks => '{192.0.2.7/32}', methods => '{POST}'"
			sql = strings.Replace(sql, ", networks => '{192.0.2.0/24}'", "", 1)
		}
		if strings.Count(sql, "networks =>") > 1 || strings.Count(sql, "methods =>") > 1 {
			continue
		}
		s.exec(sql + ")")
		if action == "limit" && random.Intn(3) == 0 {
			target := pick("tier, events) VALUES ('free', ", "user_id, events) VALUES ('ann', ", "key_id, events) VALUES (1, ")
			s.exec(fmt.Sprintf("INSERT INTO rate_limit_overrides (events, rule, limit_name, %s) VALUES (%d, 'r%d', 'per_hour', %s)",
				strings.Split(target, ",")[0], 100000+i, i, strings.TrimSuffix(strings.Split(target, "(")[1], ", ")))
		}
	}
	s.exec("INSERT INTO rate_limit_bans (network) VALUES ('192.0.2.9/32')")
	p := s.policy(policy.Settings{})
	refresh(t, p)
	kinds := make(map[string]int)
	for range 300 {
		key, user := pick("", "key of ann", "key of bob", "no key"), pick("", "ann", "bob", "eve")
		facts := policy.Facts{Tier: "anonymous", Method: pick("GET", "POST", "PUT"), Host: pick("example.com", "a.example.com", "b.example.com"),
			Path: pick("/", "/api", "/api/x", "/api/a/x", "/api/a/b/x", "/other"), Address: netip.MustParseAddr(pick("192.0.2.7", "192.0.2.8", "192.0.2.9", "198.51.100.1", "2001:db8::1"))}
		var o policy.Outcome
		if err := p.Decide(context.Background(), longTime, key, user, &facts, &o); err != nil {
			t.Fatal(err)
		}
		var digest []byte
		if key != "" {
			sum := policy.Digest(key)
			digest = sum[:]
		}
		explained := explain(t, s, digest, user, &facts)
		var decided []string
		switch {
		case o.Reason == policy.Banned:
			decided = []string{"ban"}
		case o.Exempt:
			decided = []string{"exempt " + o.Rule}
		case o.Reason == policy.Blocked:
			decided = []string{"block " + o.Rule}
		default:
			for i, hit := range o.Hits {
				decided = append(decided, fmt.Sprintf("%s/%s %d %s %v", o.Marks[i].Rule, o.Marks[i].Limit, hit.Limit.Events, o.Marks[i].From, o.Marks[i].Shadow))
			}
			slices.Sort(decided)
		}
		kinds[strings.Fields(append(decided, "nothing")[0])[0][:1]]++
		if fmt.Sprint(explained) != fmt.Sprint(decided) {
			t.Fatalf("key %q, user %q, %+v:\nexplain: %q\nDecide:  %q", key, user, facts, explained, decided)
		}
	}
	if kinds["b"] == 0 || kinds["e"] == 0 || kinds["r"] < 50 {
		t.Errorf("the requests are all alike: %v", kinds)
	}
}

// explain returns what rate_limit_explain says, in the order in which the policy decides.
func explain(t *testing.T, s *site, digest []byte, user string, f *policy.Facts) []string {
	t.Helper()
	rows, err := s.pool.Query(context.Background(), `WITH e AS (SELECT *, reason LIKE '%shadow' AS shadow FROM rate_limit_explain(key_digest => $1, user_id => nullif($2, ''), tier => $3,
			address => $4::text::inet, method => $5, host => $6, path => $7) WITH ORDINALITY WHERE applies)
		SELECT CASE kind WHEN 'ban' THEN 'ban' WHEN 'limit' THEN format('%s/%s %s %s %s', name, limit_name, events, amount_from, CASE WHEN shadow THEN 'true' ELSE 'false' END) ELSE kind || ' ' || name END
		FROM e WHERE step > 1 AND step = (SELECT min(step) FROM e WHERE step > 1 AND (step = 5 OR NOT shadow)) AND (step = 5 OR NOT shadow) ORDER BY ordinality`,
		digest, user, f.Tier, f.Address.String(), f.Method, f.Host, f.Path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(all) > 0 && strings.Contains(all[0], "/") {
		slices.Sort(all)
		return all
	}
	return all[:min(len(all), 1)]
}
