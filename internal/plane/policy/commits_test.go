package policy_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// A proxy finds each change in whatever order the transactions commit, and a rule is never in force without
// all its limits. What is rolled back, and what waits to be committed, is not there.
func TestRulesArriveInWhateverOrderTheyAreCommitted(t *testing.T) {
	s := newSite(t)
	ctx := context.Background()
	p := s.policy(policy.Settings{})
	refresh(t, p)
	want := func(when string, limits ...string) {
		t.Helper()
		refresh(t, p)
		facts := policy.Facts{Tier: "anonymous", Method: "GET", Host: "api.example.com", Path: "/"}
		var o policy.Verdict
		if err := p.Evaluate(ctx, longTime, "", "", &facts, &o); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, hit := range o.Hits {
			got = append(got, strings.TrimPrefix(hit.Limit.Prefix, "rule/"))
		}
		same(t, when, strings.Join(got, " "), strings.Join(limits, " "))
	}
	open, first, second, undone := s.begin(), s.begin(), s.begin(), s.begin()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := open.Exec(ctx,
		"SELECT rate_limit_rule('a', priority => 4, count_by => '{all}', per_hour => 10)")
	must(err)
	want("while a transaction is open")
	_, err = first.Exec(ctx,
		"SELECT rate_limit_rule('b', priority => 3, count_by => '{all}', per_hour => 10)")
	must(err)
	_, err = second.Exec(ctx,
		"SELECT rate_limit_rule('c', priority => 2, count_by => '{all}', per_hour => 10)")
	must(err)
	_, err = undone.Exec(ctx,
		"SELECT rate_limit_rule('d', priority => 1, count_by => '{all}', per_hour => 10)")
	must(err)
	must(second.Commit(ctx))
	want("after the second transaction", "c/per_hour")
	must(undone.Rollback(ctx))
	want("after one that is rolled back", "c/per_hour")
	_, err = first.Exec(ctx, "SELECT rate_limit_limit('b', 'some', '50/10s')")
	must(err)
	want("while a rule gets another limit", "c/per_hour")
	must(first.Commit(ctx))
	want("after the first transaction", "b/per_hour", "b/some", "c/per_hour")
	s.after(time.Minute)
	want("after a minute", "b/per_hour", "b/some", "c/per_hour")
	must(open.Commit(ctx))
	want("after the open transaction", "a/per_hour", "b/per_hour", "b/some", "c/per_hour")
	same(t, "what was reported", s.reports(), "")
}
