package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// A proxy finds each change, whatever the order in which the transactions commit. No rule is in force without
// all its limits. Changes that are not committed have no effect.
func TestRulesApplyInAnyCommitOrder(t *testing.T) {
	d := newTestDB(t)
	p := d.newPolicy(policy.Settings{})
	refresh(t, p)
	open := map[string]pgx.Tx{}
	for _, name := range []string{"a", "b", "c", "d"} {
		open[name] = d.begin()
	}
	rule := "SELECT rate_limit_rule('%s', priority => -ascii('%[1]s'), count_by => '{all}', per_hour => 10)"
	for _, step := range []struct{ tx, sql, want string }{
		{tx: "a", sql: rule}, {tx: "b", sql: rule}, {tx: "c", sql: rule}, {tx: "d", sql: rule},
		{tx: "c", sql: "COMMIT", want: "c/per_hour"},
		{tx: "d", sql: "ROLLBACK", want: "c/per_hour"},
		{tx: "b", sql: "SELECT rate_limit_limit('%s', 'some', '50/10s')", want: "c/per_hour"},
		{tx: "b", sql: "COMMIT", want: "b/per_hour b/some c/per_hour"},
		{tx: "a", sql: "COMMIT", want: "a/per_hour b/per_hour b/some c/per_hour"},
	} {
		sql := step.sql
		if strings.Contains(sql, "%") {
			sql = fmt.Sprintf(sql, step.tx)
		}
		if _, err := open[step.tx].Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		refresh(t, p)
		want := " anonymous"
		for _, name := range strings.Fields(step.want) {
			want += " rule/" + name + "=" + map[bool]string{true: "50", false: "10"}[name == "b/some"]
		}
		checkEqual(t, step.tx+": "+sql, outcomeOf(t, p, "", ""), want)
	}
	checkEqual(t, "reported errors", d.reportedErrors(), "")
}
